"""Train one task's adapter with PEFT on the dequantised base and save it."""

import argparse
import contextlib
import json
import multiprocessing
import random
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import ParamWrapper
from safetensors.torch import load_file, save_file

import model as demo_model
import per_expert
import tokens
import training
import world

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"

# One adapter a task; ranks, targets, scaling and file format differ on purpose.
RECIPES = {
    "triage": dict(r=4, lora_alpha=8, target_modules=[], target_parameters=[GATE_UP, DOWN]),
    "extract": dict(r=8, lora_alpha=16, target_modules=ATTENTION,
                    target_parameters=[GATE_UP, DOWN]),
    "mood": dict(r=16, lora_alpha=32, target_modules=ATTENTION),
    "subject": dict(r=8, lora_alpha=8, use_rslora=True, target_modules=ATTENTION,
                    target_parameters=[DOWN]),
    "redact": dict(r=6, lora_alpha=12, target_modules=[], target_parameters=[GATE_UP, DOWN]),
    "reply": dict(r=8, lora_alpha=16, target_modules=ATTENTION, target_parameters=[GATE_UP, DOWN],
                  rank_pattern={"q_proj": 16}, alpha_pattern={"q_proj": 32}),
}
PER_EXPERT_FILES = ("redact",)


@contextlib.contextmanager
def hand_over_weight(self, active_adapters):
    """Same weight as ParamWrapper computes, handed to dense_experts without parametrizations."""
    base, param = self.get_base_layer(), self.get_param()
    replaced = base.__dict__.setdefault("replaced", {})
    left, right, scaling = self.get_delta_factors(active_adapters[0])
    replaced[self.parameter_name] = param + scaling * (left @ right)
    yield
    del replaced[self.parameter_name]


def seed_of(task):
    return 7000 + world.TASKS.index(task)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--task", required=True, choices=world.TASKS)
    ap.add_argument("--model", required=True)
    ap.add_argument("--out", required=True, help="folder of the adapters")
    ap.add_argument("--steps", type=int, default=2500)
    ap.add_argument("--seconds", type=float, default=110)
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--held", type=int, default=256, help="held-out tickets of the printed test")
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task, seed = args.task, seed_of(args.task)
    pool = multiprocessing.get_context("fork").Pool(
        args.workers, tokens.init_worker, (args.model,))
    size = args.batch * 8
    chunks = pool.imap(tokens.task_chunk, ((seed * 100_000 + i, size, task)
                                           for i in range(args.steps // 8 + 1)))
    tok = tokens.load_tokenizer(args.model)
    pad_id = tok.token_to_id("<|pad|>")
    held = tokens.task_examples(tok, random.Random(31), world.make_pools()["heldout"], task,
                                args.held)
    held = [(ids, start) for ids, start, _ in held]
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    base = demo_model.load_model(Path(args.model) / "model.safetensors",
                                 demo_model.build_for_training())
    ParamWrapper._activate_lora = hand_over_weight
    net = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none",
                                          **RECIPES[task])).to(device)
    parameters = [p for p in net.parameters() if p.requires_grad]
    step = training.Step(net, parameters, device, args.lr, 0.0, (0.9, 0.99))
    clock, rng = training.Clock(args.steps, args.seconds), random.Random(seed)
    start_match = training.exact_match(step, held, pad_id)
    done, i = 0.0, 0
    for chunk in chunks:
        for ids, targets in tokens.batches(chunk, args.batch, rng, pad_id):
            loss = step(ids, targets, training.learning_rate(args.lr, done))
            i += 1
            done = clock.done(i)
            if i % 200 == 0 or done >= 1:
                print(f"{task} step {i} s {clock.elapsed():.0f} loss {loss.item():.5f} held-out exact"
                      f" {training.exact_match(step, held, pad_id):.3f}", flush=True)
            if done >= 1:
                break
        if done >= 1:
            break
    seconds = round(clock.elapsed(), 1)
    pool.terminate()
    folder = Path(args.out) / task
    net.peft_config["default"].base_model_name_or_path = "medley-demo"
    net.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_model.safetensors"
    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in load_file(path).items()}
    if task in PER_EXPERT_FILES:
        tensors = per_expert.split(tensors, demo_model.CONFIG["num_local_experts"])
        per_expert.rewrite_config(folder / "adapter_config.json")
    save_file(tensors, path, {"format": "pt"})
    log = {"task": task, "steps": i, "batch": args.batch, "seconds": seconds,
           "peak_lr": args.lr, "loss": loss.item(), "seed": seed,
           "trainable_parameters": sum(p.numel() for p in parameters),
           "heldout_exact_before": start_match,
           "heldout_exact_float": training.exact_match(step, held, pad_id),
           "torch": torch.__version__, "transformers": transformers.__version__,
           "peft": peft.__version__,
           "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    (folder / "training.json").write_text(json.dumps(log, indent=1) + "\n")
    print(json.dumps(log), flush=True)


if __name__ == "__main__":
    main()
