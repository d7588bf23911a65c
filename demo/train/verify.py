"""Recompute stored predictions from the committed files, one token at a time, and compare.

Float32, CPU, own MXFP4 dequantisation, adapter not merged, no cache, no padding. Exit status 1 when
a token differs where the stored gap is not close.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

import reference
import tokens
import world


@torch.no_grad()
def greedy(net, prompt, num_tokens):
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(net(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt):]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--demo", default=str(Path(__file__).resolve().parent.parent))
    ap.add_argument("--count", type=int, default=2, help="predictions for each model")
    args = ap.parse_args()
    demo = Path(args.demo)
    tok = tokens.load_tokenizer(demo / "model")
    tickets = [json.loads(line) for line in open(demo / "reference" / "tickets.jsonl")]
    bad = 0
    for name in ("base",) + world.TASKS:
        path = demo / "reference" / "predictions" / f"{name}.jsonl"
        stored = [json.loads(line) for line in open(path)][-args.count:]
        net = reference.load_reference(demo, None if name == "base" else name)
        same = positions = 0
        for want in stored:
            ticket = tickets[want["ticket"]]
            prompt = tokens.encode(tok, tokens.chat_text(ticket["messages"], True))
            if prompt != ticket["prompt_ids"]:
                raise RuntimeError(f"ticket {want['ticket']}: the prompt's token ids differ")
            end = len(want["ids"]) if want["first_close"] is None else want["first_close"]
            got = greedy(net, prompt, end)
            same += got == want["ids"][:end]
            positions += end
        bad += same != len(stored)
        print(f"{name}: {same} of {len(stored)} answers equal, {positions} tokens")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
