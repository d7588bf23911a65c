"""Reference predictions and the accuracy matrix: float32 transformers + PEFT on held-out tickets.

Batched greedy decoding proposes each answer; an unbatched, unpadded forward over prompt + answer
then yields the stored logit gaps and must agree with every token whose gap is not close.
"""

import argparse
import json
import multiprocessing
import platform
import random
import time
from pathlib import Path

import peft
import safetensors
import tokenizers
import torch
import transformers

import reference
import tokens
import world

TICKET_SEED = 4242
MAX_NEW_TOKENS = 192


@torch.no_grad()
def generate(net, prompts, pad_id, eos_ids, batch_size):
    """Greedy answers, end token included; net has any adapter merged in."""
    answers = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for begin in range(0, len(order), batch_size):
        group = order[begin:begin + batch_size]
        length = max(len(prompts[i]) for i in group)
        ids = torch.tensor([[pad_id] * (length - len(prompts[i])) + prompts[i] for i in group])
        ids = ids.to(net.device)
        out = net.generate(input_ids=ids, attention_mask=(ids != pad_id).long(), do_sample=False,
                           max_new_tokens=MAX_NEW_TOKENS, eos_token_id=eos_ids,
                           pad_token_id=pad_id)
        for row, i in enumerate(group):
            answer = out[row, length:].tolist()
            ends = [p for p, t in enumerate(answer) if t in eos_ids]
            answers[i] = answer[:ends[0] + 1] if ends else answer
    return answers


@torch.no_grad()
def gaps_of(net, prompt, answer):
    """Top-1 minus top-2 logit at each answer position, negative where `answer` is not the top."""
    ids = torch.tensor([prompt + answer[:-1]], device=net.device)
    logits = net(input_ids=ids).logits[0, len(prompt) - 1:].cpu()
    top = logits.topk(2, -1)
    gap = top.values[:, 0] - top.values[:, 1]
    return torch.where(top.indices[:, 0] == torch.tensor(answer), gap, -gap).tolist()


def field_accuracy(text, t):
    try:
        got = json.loads(text)
    except ValueError:
        return 0.0
    want = json.loads(world.answer("extract", t))
    return sum(isinstance(got, dict) and got.get(k) == v for k, v in want.items()) / len(want)


def evaluate(args, name):
    """Writes the stored predictions of one model; returns its row of the matrix."""
    start, demo, out = time.time(), Path(args.demo), Path(args.out or Path(args.demo) / "reference")
    torch.set_num_threads(2)
    torch.backends.cuda.matmul.allow_tf32 = False
    tok = tokens.load_tokenizer(demo / "model")
    pad_id = tok.token_to_id("<|pad|>")
    eos_ids = json.loads((demo / "model" / "generation_config.json").read_text())["eos_token_id"]
    rng, pool = random.Random(TICKET_SEED), world.make_pools()["heldout"]
    tickets = [world.make_ticket(rng, pool) for _ in range(args.tickets)]
    messages = [[{"role": "user", "content": t.text}] for t in tickets]
    prompts = [tokens.encode(tok, tokens.chat_text(m, True)) for m in messages]
    if name == "base":
        with open(out / "tickets.jsonl", "w") as f:
            for i in range(args.stored):
                f.write(json.dumps({
                    "ticket": i, "messages": messages[i],
                    "prompt": tokens.chat_text(messages[i], True), "prompt_ids": prompts[i],
                    "answers": {task: world.answer(task, tickets[i]) for task in world.TASKS},
                }) + "\n")
    adapter = None if name == "base" else name
    merged = reference.load_reference(demo, adapter)
    if adapter:
        merged = merged.merge_and_unload()
    answers = generate(merged.to(args.device), prompts, pad_id, eos_ids, args.batch)
    texts = [tok.decode(a, skip_special_tokens=True) for a in answers]
    net = reference.load_reference(demo, adapter).to(args.device)
    close = total = 0
    with open(out / "predictions" / f"{name}.jsonl", "w") as f:
        for i in range(args.stored):
            gaps = gaps_of(net, prompts[i], answers[i])
            if min(gaps) < -reference.CLOSE_GAP:
                raise RuntimeError(f"{name}, ticket {i}: batched and unbatched answers differ")
            near = [p for p, g in enumerate(gaps) if g < reference.CLOSE_GAP]
            close, total = close + len(near), total + len(gaps)
            f.write(json.dumps({
                "ticket": i, "ids": answers[i], "text": texts[i],
                "gaps": [float(f"{g:.4g}") for g in gaps],
                "first_close": near[0] if near else None}) + "\n")
    row = {"exact": {task: sum(text == world.answer(task, t) for text, t in zip(texts, tickets))
                     / len(tickets) for task in world.TASKS},
           "fields": sum(map(field_accuracy, texts, tickets)) / len(tickets),
           "close": close, "total": total}
    print(f"{name} {row} {time.time() - start:.0f} s", flush=True)
    return row


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--demo", required=True, help="the demo folder with model/ and adapters/")
    ap.add_argument("--tickets", type=int, default=200)
    ap.add_argument("--stored", type=int, default=56)
    ap.add_argument("--batch", type=int, default=200)
    ap.add_argument("--processes", type=int, default=7)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--out", help="default: DEMO/reference")
    args = ap.parse_args()
    out = Path(args.out or Path(args.demo) / "reference")
    (out / "predictions").mkdir(parents=True, exist_ok=True)
    names = ["base"] + [t for t in world.TASKS if (Path(args.demo) / "adapters" / t).is_dir()]
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.processes) as pool:
        rows = dict(zip(names, pool.starmap(evaluate, [(args, n) for n in names], chunksize=1)))
    generation = json.loads((Path(args.demo) / "model" / "generation_config.json").read_text())
    device = args.device if args.device == "cpu" else torch.cuda.get_device_name()
    (out / "matrix.json").write_text(json.dumps({
        "measure": "share of held-out tickets whose greedy answer equals the task's answer exactly",
        "tickets": args.tickets, "rows": "model", "columns": "task",
        "exact": {n: r["exact"] for n, r in rows.items()},
        "extract_field_accuracy": {n: r["fields"] for n, r in rows.items()},
        "stored_positions": sum(r["total"] for r in rows.values()),
        "stored_positions_below_gap": {
            str(reference.CLOSE_GAP): sum(r["close"] for r in rows.values())},
        "dtype": "float32", "device": device,
        "ticket_seed": TICKET_SEED, "max_new_tokens": MAX_NEW_TOKENS,
        "eos_token_id": generation["eos_token_id"],
        "versions": {"python": platform.python_version(), "torch": torch.__version__,
                     "transformers": transformers.__version__, "peft": peft.__version__,
                     "tokenizers": tokenizers.__version__, "safetensors": safetensors.__version__},
    }, indent=1) + "\n")


if __name__ == "__main__":
    main()
