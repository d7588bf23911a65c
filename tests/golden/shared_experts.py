"""LoRA files in which one A or B stands for all experts, and what they say with one for each.

    ...experts.NAME.lora_A   (E, r, in), or one for all: (1, r, in), (r, in)       NAME: a projection, or gate_up_proj
    ...experts.NAME.lora_B   (E, out, r), or one for all: (1, out, r), (out, r)
    ...experts.lora_A        (E * r, p), PEFT's flat form, or one for all: (r, p)
    ...experts.lora_B        (q, r * E), or one for all: (q, r)
"""

import re

import numpy
import torch

from make_adapters import rounded, seed_of

NAMED = re.compile(r"(.*\.experts)\.([a-z]\w*)\.(lora_[AB]\.weight)$")
FLAT = re.compile(r"(.*\.experts(?:\.base_layer)?)\.lora_[AB]\.weight$")


def expanded(tensors, experts):
    out = {}
    for name, tensor in tensors.items():
        named, flat = NAMED.fullmatch(name), FLAT.fullmatch(name)
        if named and named[2] != "base_layer":
            each = tensor if tensor.dim() == 3 else tensor[None]
            for expert in range(experts):
                for projection, part in projections(named[2], named[3], each[expert % len(each)]).items():
                    out[f"{named[1]}.{expert}.{projection}.{named[3]}"] = part.clone()
        elif flat:
            rank = min(tensors[flat[1] + ".lora_A.weight"].shape[0], tensors[flat[1] + ".lora_B.weight"].shape[1])
            out[name] = spread(tensor, ".lora_A." in name, tensors, flat[1], rank, experts)
        else:
            out[name] = tensor
    return out


def projections(name, side, tensor):
    if name != "gate_up_proj":
        return {name: tensor}
    gate, up = (tensor, tensor) if side.startswith("lora_A") else tensor.chunk(2)
    return {"gate_proj": gate, "up_proj": up}


def spread(tensor, is_a, tensors, stem, rank, experts):
    """A flat tensor as it is where both sides are flat; else the single matrix once for every expert."""
    if tensors[stem + ".lora_A.weight"].shape[0] == tensors[stem + ".lora_B.weight"].shape[1]:
        return tensor
    if tensor.shape[0 if is_a else 1] != rank:
        return tensor
    return tensor.repeat(experts, 1) if is_a else tensor.repeat_interleave(experts, dim=1)


def random_shared_outer(model, name, config, layers, rank, scale):
    """(E or 1, r, in) and (E or 1, out, r) of gate, up and down of every layer: one A into the experts, one B out."""
    hidden = config["hidden_size"]
    inter = config.get("moe_intermediate_size", config["intermediate_size"])
    experts = config.get("num_local_experts") or config["num_experts"]
    random, out = numpy.random.default_rng(seed_of(model, name)), {}
    b_std = 0.7 / (scale * rank ** 0.5)
    for layer in layers:
        a = rounded(random, (1, rank, hidden), hidden ** -0.5)
        for projection in ("gate_proj", "up_proj"):
            out[layer, projection] = (a, rounded(random, (experts, inter, rank), b_std))
        out[layer, "down_proj"] = (rounded(random, (experts, rank, inter), inter ** -0.5),
                                   rounded(random, (1, hidden, rank), b_std))
    return out


def stacked_keys(pairs, prefix, names):
    """Every tensor under a name without an expert's number."""
    out = {}
    for (layer, projection), (a, b) in pairs.items():
        stem = f"{prefix}model.layers.{layer}.mlp.experts.{names[projection]}"
        out[stem + ".lora_A.weight"], out[stem + ".lora_B.weight"] = a, b
    return out


def single_keys(pairs, prefix):
    """One for all under a name without an expert's number, the rest expert by expert."""
    out = {}
    for (layer, projection), sides in pairs.items():
        stem = f"{prefix}model.layers.{layer}.mlp.experts"
        for side, tensor in zip("AB", sides, strict=True):
            if len(tensor) == 1:
                out[f"{stem}.{projection}.lora_{side}.weight"] = tensor
                continue
            for expert, matrix in enumerate(tensor):
                out[f"{stem}.{expert}.{projection}.lora_{side}.weight"] = matrix
    return out


def gate_up_keys(pairs, prefix):
    """Gate and up as one gate_up_proj with their A once and their rows gate, then up."""
    out = {}
    for (layer, projection), (a, b) in pairs.items():
        stem = f"{prefix}model.layers.{layer}.mlp.experts."
        if projection == "up_proj":
            continue
        if projection == "gate_proj":
            b = torch.cat([b, pairs[layer, "up_proj"][1]], dim=1)
        name = "gate_up_proj" if projection == "gate_proj" else projection
        out[f"{stem}{name}.lora_A.weight"], out[f"{stem}{name}.lora_B.weight"] = a, b
    return out


def flat_keys(pairs, prefix):
    """PEFT's flat form of GPT-OSS: gate and up interleaved, down the outer level, the single matrix not repeated."""
    out = {}
    for (layer, projection), (a, b) in pairs.items():
        stem = f"{prefix}model.layers.{layer}.mlp.experts"
        if projection == "up_proj":
            continue
        if projection == "gate_proj":
            up = pairs[layer, "up_proj"][1]
            b = torch.stack([b, up], dim=2).reshape(b.shape[0], -1, b.shape[2])
            stem += ".base_layer"
        out[stem + ".lora_A.weight"] = a.reshape(-1, a.shape[2])
        out[stem + ".lora_B.weight"] = b.permute(1, 2, 0).reshape(b.shape[1], -1)
    return out
