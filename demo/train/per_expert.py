"""PEFT's fused 3-D LoRA keys for GPT-OSS experts <-> one pair of matrices per expert.

Fused (PEFT `target_parameters`): `…mlp.experts.base_layer.lora_A.weight` and
`…mlp.experts.lora_A.weight`, A (E·r, in) with the expert outer, B (out, r·E) with the expert inner;
gate_up's `out` interleaves gate (even rows) and up (odd rows). Per expert:
`…mlp.experts.{i}.{gate,up,down}_proj.lora_{A,B}.weight`, A (r, in), B (out, r); gate and up carry
equal A's. Both directions only move numbers.
"""

import json
import re
from pathlib import Path

import torch

FUSED = re.compile(r"^(.*\.mlp\.experts)((?:\.base_layer)?)\.lora_([AB])\.weight$")
SINGLE = re.compile(r"^(.*\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.lora_([AB])\.weight$")


def level_of(tensors, stem, levels, double):
    """Which nesting level holds gate_up: the one whose B has 2·I rows."""
    wide = [lv for lv in levels if tensors[f"{stem}{lv}.lora_B.weight"].shape[0] == double]
    if len(wide) != 1:
        raise ValueError(f"{stem}: cannot tell gate_up from down among levels {levels}")
    return {lv: "gate_up" if lv == wide[0] else "down" for lv in levels}


def split(tensors, num_experts, double=512):
    out, stems = {}, {}
    for name, value in tensors.items():
        match = FUSED.match(name)
        if match:
            stems.setdefault(match[1], set()).add(match[2])
        else:
            out[name] = value
    for stem, levels in stems.items():
        for level, what in level_of(tensors, stem, sorted(levels), double).items():
            a = tensors[f"{stem}{level}.lora_A.weight"].unflatten(0, (num_experts, -1))
            b = tensors[f"{stem}{level}.lora_B.weight"].unflatten(1, (-1, num_experts))
            for i in range(num_experts):
                pieces = ({"down": b[:, :, i]} if what == "down"
                          else {"gate": b[0::2, :, i], "up": b[1::2, :, i]})
                for proj, piece in pieces.items():
                    key = f"{stem}.{i}.{proj}_proj"
                    out[key + ".lora_A.weight"] = a[i].clone()
                    out[key + ".lora_B.weight"] = piece.contiguous()
    return out


def fuse(tensors, num_experts):
    """The inverse of split, with gate_up at the inner level (`base_layer`) and down outside."""
    out, stems = {}, set()
    for name, value in tensors.items():
        match = SINGLE.match(name)
        if match:
            stems.add(match[1])
        else:
            out[name] = value
    for stem in sorted(stems):
        def side(proj, which):
            return [tensors[f"{stem}.{i}.{proj}_proj.lora_{which}.weight"]
                    for i in range(num_experts)]
        if not all(torch.equal(g, u) for g, u in zip(side("gate", "A"), side("up", "A"))):
            raise ValueError(f"{stem}: gate and up have different A's")
        gate_up_b = [torch.stack([g, u], 1).flatten(0, 1)
                     for g, u in zip(side("gate", "B"), side("up", "B"))]
        for level, a, b in ((".base_layer", side("gate", "A"), gate_up_b),
                            ("", side("down", "A"), side("down", "B"))):
            out[f"{stem}{level}.lora_A.weight"] = torch.cat(a, 0)
            out[f"{stem}{level}.lora_B.weight"] = torch.stack(b, 2).flatten(1)
    return out


def rewrite_config(path):
    path = Path(path)
    config = json.loads(path.read_text())
    config["target_parameters"] = None
    config["target_modules"] = ["gate_proj", "up_proj", "down_proj"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def fused_config(path):
    config = json.loads(Path(path).read_text())
    config["target_modules"] = []
    config["target_parameters"] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return config
