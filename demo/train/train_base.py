"""Train the base, quantise its experts to MXFP4 and write the model file."""

import argparse
import json
import multiprocessing
import random
from pathlib import Path

import torch

import model as demo_model
import tokens
import training
import world

CHUNK_DOCS = 8192
FIRST_SEED = 1_000_000


def probe_examples(tok, num, seed):
    """Questions about held-out tickets and requests to repeat them."""
    rng, pool = random.Random(seed), world.make_pools()["heldout"]
    sets = {"question": [], "repeat": []}
    for _ in range(num):
        t = world.make_ticket(rng, pool)
        q, a = world.question_and_answer(rng, t)
        for name, question, reply in (("question", q, a),
                                      ("repeat", "Repeat the message.", t.text)):
            prompt = tokens.encode(tok, tokens.chat_text(
                [{"role": "user", "content": t.text + "\n\n" + question}], True))
            sets[name].append((prompt + tokens.encode(tok, reply + "<|end|>"), len(prompt)))
    return sets


def replace_experts(net, active):
    """Straight-through MXFP4: the forward sees the rounded weights, the gradient does not."""
    for layer in net.model.layers:
        experts = layer.mlp.experts
        experts.__dict__["replaced"] = {} if not active else {
            name: w + (demo_model.round_trip(w.detach()) - w.detach())
            for name in demo_model.EXPERT_PARAMETERS for w in [getattr(experts, name)]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True, help="model folder with tokenizer files")
    ap.add_argument("--steps", type=int, default=6000)
    ap.add_argument("--seconds", type=float, default=150)
    ap.add_argument("--batch", type=int, default=192)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--probes", type=int, default=256)
    ap.add_argument("--chunk", type=int, default=CHUNK_DOCS)
    args = ap.parse_args()
    out = Path(args.out)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pool = multiprocessing.get_context("fork").Pool(
        args.workers, tokens.init_worker, (str(out),))
    chunks = pool.imap(tokens.base_chunk,
                       ((FIRST_SEED + i, args.chunk) for i in range(args.steps * args.batch
                                                                    // args.chunk + 1)))
    tok = tokens.load_tokenizer(out)
    pad_id, end_id = tok.token_to_id("<|pad|>"), tok.token_to_id("<|end|>")
    torch.manual_seed(20310314)
    net = demo_model.build_for_training().to(device)
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith(("o_proj.weight", "experts.down_proj")):
                p.mul_((2 * demo_model.CONFIG["num_hidden_layers"]) ** -0.5)
    num_parameters = sum(p.numel() for p in net.parameters())
    print(f"parameters {num_parameters}", flush=True)
    step = training.Step(net, net.parameters(), device, args.lr, 0.05, (0.9, 0.95))
    clock, rng = training.Clock(args.steps, args.seconds), random.Random(99)
    done, num_tokens, i, quantised = 0.0, 0, 0, False
    for chunk in chunks:
        for ids, targets in tokens.batches(chunk, args.batch, rng, pad_id):
            quantised = done > 0.8
            replace_experts(net, quantised)
            loss = step(ids, targets, training.learning_rate(args.lr, done), balance=0.01)
            num_tokens += int((targets != -100).sum())
            i += 1
            done = clock.done(i)
            if i % 100 == 0 or done >= 1:
                print(f"step {i} done {done:.2f} s {clock.elapsed():.0f} tokens {num_tokens/1e6:.1f}M"
                      f" loss {loss.item():.4f} balance {step.balance_loss().item():.3f}", flush=True)
            if done >= 1:
                break
        if done >= 1:
            break
    seconds = round(clock.elapsed(), 1)
    pool.terminate()
    replace_experts(net, active=False)
    demo_model.save_model(net, out / "model.safetensors")
    demo_model.write_config(out, [end_id, tok.token_to_id("<|endoftext|>")], pad_id)
    probes = probe_examples(tok, args.probes, seed=5)
    before = {k: training.exact_match(step, v, pad_id) for k, v in probes.items()}
    demo_model.load_model(out / "model.safetensors", net)
    after = {k: training.exact_match(step, v, pad_id) for k, v in probes.items()}
    log = {"parameters": num_parameters, "steps": i, "batch": args.batch, "tokens": num_tokens,
           "seconds": seconds, "loss": loss.item(), "peak_lr": args.lr,
           "heldout_exact_float": before, "heldout_exact_from_file": after,
           "seeds": {"torch": 20310314, "documents": FIRST_SEED, "batches": 99},
           "torch": torch.__version__,
           "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    (out / "training.json").write_text(json.dumps(log, indent=1) + "\n")
    print(json.dumps(log), flush=True)


if __name__ == "__main__":
    main()
