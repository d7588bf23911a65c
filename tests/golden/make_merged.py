"""Adapters that PEFT does not write, with a reference of their own: the delta added to the weights, then transformers.

    python make_merged.py make      writes them (transformers 4)
    python make_merged.py shared    writes those in which all experts share a matrix (transformers 4)
    python make_merged.py verify    the same arithmetic against PEFT's answers for every stored fused or per-expert adapter

The arithmetic is the format's definition, written out; `verify` shows that it is PEFT's.
"""

import json
import math
import re
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file, save_file

import common
import shared_experts
from make_adapters import read, rounded, seed_of

PREFIX = "base_model.model."
KEY = re.compile(r"(?P<module>.*?)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")
EXPERT = re.compile(r"(?P<stem>.*\.experts)\.(?P<expert>\d+)\.(?P<projection>\w+)$")
OTHER_NAMES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def scale_of(config, rank):
    return config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)


def pairs(tensors):
    """module name -> {A, B}, the PEFT prefix taken off."""
    found = {}
    for name, tensor in tensors.items():
        match = KEY.fullmatch(name.removeprefix(PREFIX))
        if not match:
            raise SystemExit(f"not read here: {name}")
        found.setdefault(match["module"], {})[match["side"]] = tensor.float()
    return found


def fused_delta(shape, a, b, scale, a_spans_first):
    """The delta of W[E, d1, d2]. Flat A has the expert outermost in its rows, flat B innermost in its columns."""
    experts, first, second = shape
    rank = a.shape[0] // experts
    a = a.view(experts, rank, a.shape[1])
    b = b.view(b.shape[0], rank, experts).permute(2, 0, 1)
    delta = (b @ a) * scale
    delta = delta.transpose(1, 2) if a_spans_first else delta
    if tuple(delta.shape) != (experts, first, second):
        raise SystemExit(f"delta {tuple(delta.shape)}, parameter {shape}")
    return delta


def stacked(tensors, stem, parameter, family):
    """The fused parameter as PEFT saw it: GPT-OSS as stored, Qwen3-MoE (E, out, in) stacked from its experts."""
    if family == "gpt_oss":
        return tensors[f"{stem}.{parameter}"]
    fused = common.fuse_experts({n: t for n, t in tensors.items() if n.startswith(stem + ".")})
    return fused[f"{stem}.{parameter}"]


def add_fused(tensors, stem, parameter, family, a, b, scale, old_sides):
    weight = stacked(tensors, stem, parameter, family)
    delta = fused_delta(tuple(weight.shape), a, b, scale, old_sides or family == "gpt_oss")
    if family == "gpt_oss":
        tensors[f"{stem}.{parameter}"] = weight + delta
        return
    for expert in range(weight.shape[0]):
        if parameter == "down_proj":
            tensors[f"{stem}.{expert}.down_proj.weight"] = weight[expert] + delta[expert]
        else:
            gate, up = (weight[expert] + delta[expert]).chunk(2)
            tensors[f"{stem}.{expert}.gate_proj.weight"] = gate
            tensors[f"{stem}.{expert}.up_proj.weight"] = up


def add_per_expert(tensors, match, family, delta):
    stem, expert = match["stem"], int(match["expert"])
    projection = OTHER_NAMES.get(match["projection"], match["projection"])
    if family != "gpt_oss":
        name = f"{stem}.{expert}.{projection}.weight"
        tensors[name] = tensors[name] + delta
    elif projection == "down_proj":
        tensors[f"{stem}.down_proj"] = tensors[f"{stem}.down_proj"].clone()
        tensors[f"{stem}.down_proj"][expert] += delta.T
    else:
        start = {"gate_proj": 0, "up_proj": 1}[projection]
        tensors[f"{stem}.gate_up_proj"] = tensors[f"{stem}.gate_up_proj"].clone()
        tensors[f"{stem}.gate_up_proj"][expert][:, start::2] += delta.T


def levels(config, widths, tensors, stem, family):
    """Which parameter each wrapper level of one experts module holds: the assignment whose shapes fit."""
    parameters = [p.rsplit(".", 1)[1] for p in config["target_parameters"] if ".experts." in p]
    sizes = {p: sorted(stacked(tensors, stem, p, family).shape[1:]) for p in parameters}
    modules = list(widths)
    for order in (parameters, parameters[::-1]):
        if all(sorted(widths[m]) == sizes[p] for m, p in zip(modules, order, strict=True)):
            return dict(zip(modules, order, strict=True))
    raise SystemExit(f"{stem}: no parameter fits {widths}")


def merged(model, tensors, adapter, config, old_sides):
    fields = json.loads((common.HERE / model / "config.json").read_text())
    family = fields["model_type"]
    experts = fields.get("num_local_experts") or fields.get("num_experts")
    adapter = shared_experts.expanded(adapter, experts) if experts else adapter
    tensors = dict(tensors)
    nested = {}
    for module, pair in pairs(adapter).items():
        expert = EXPERT.fullmatch(module)
        if expert:
            rank = pair["A"].shape[0]
            add_per_expert(tensors, expert, family, scale_of(config, rank) * pair["B"] @ pair["A"])
        elif ".mlp.experts" in module:
            nested.setdefault(module.removesuffix(".base_layer"), {})[module] = pair
        else:
            name = module + ".weight"
            tensors[name] = tensors[name] + scale_of(config, pair["A"].shape[0]) * pair["B"] @ pair["A"]
    for stem, modules in nested.items():
        widths = {m: (p["A"].shape[1], p["B"].shape[0]) for m, p in modules.items()}
        for module, parameter in levels(config, widths, tensors, stem, family).items():
            pair = modules[module]
            rank = pair["A"].shape[0] // stacked(tensors, stem, parameter, family).shape[0]
            add_fused(tensors, stem, parameter, family, pair["A"], pair["B"], scale_of(config, rank), old_sides)
    return tensors


def old_sides(config):
    version = config.get("peft_version") or "0.17"
    return tuple(int(x) for x in version.split(".")[:2]) < (0, 19)


def answers(model, adapter, config, names=common.ADAPTER_PROMPTS):
    folder = common.HERE / model
    base = json.loads((folder / "golden.json").read_text())
    ids = {prompt["name"]: prompt["ids"] for prompt in base["prompts"]}
    tensors = merged(model, common.plain_tensors(folder), adapter, config, old_sides(config))
    return common.record(common.load_reference(folder, tensors), ids, names, common.ADAPTER_STEPS)


def config_fields(model, **fields):
    return {"base_model_name_or_path": model, "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
            "lora_alpha": 8, "lora_dropout": 0.0, "modules_to_save": None, "peft_type": "LORA", "r": 4,
            "target_modules": [], "task_type": "CAUSAL_LM", "use_dora": False, "use_rslora": False, **fields}


def write(model, name, adapter, config, note):
    folder = common.HERE / model / "adapters" / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.clone().contiguous() for k, v in adapter.items()}, folder / "adapter_model.safetensors",
              metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    value = {"model": model, "adapter": name, "reference": "merged", "note": note, "dtype": "float32",
             "seed": seed_of(model, name), "versions": common.versions(), "ignore_eos": True,
             "prompts": answers(model, adapter, config)}
    common.write_json(folder / "golden.json", value)
    print(f"{model}/{name}: {len(adapter)} tensors")
    return value


def source(model, name):
    folder = common.HERE / model / "adapters" / name
    return (load_file(folder / "adapter_model.safetensors"), json.loads((folder / "adapter_config.json").read_text()),
            json.loads((folder / "golden.json").read_text()))


def split_experts(model, adapter, config):
    """A fused adapter's tensors as per-expert ones, exactly: gate and up share the expert's A."""
    family = json.loads((common.HERE / model / "config.json").read_text())["model_type"]
    plain = common.plain_tensors(common.HERE / model)
    out, nested = {}, {}
    for module, pair in pairs(adapter).items():
        nested.setdefault(module.removesuffix(".base_layer"), {})[module] = pair
    for stem, modules in nested.items():
        widths = {m: (p["A"].shape[1], p["B"].shape[0]) for m, p in modules.items()}
        for module, parameter in levels(config, widths, plain, stem, family).items():
            a, b = modules[module]["A"].bfloat16(), modules[module]["B"].bfloat16()
            experts = stacked(plain, stem, parameter, family).shape[0]
            rank = a.shape[0] // experts
            for expert in range(experts):
                a_e = a.view(experts, rank, -1)[expert]
                b_e = b.view(b.shape[0], rank, experts)[:, :, expert]
                for projection, rows in halves(parameter, b_e, family).items():
                    stem_key = f"{PREFIX}{stem}.{expert}.{projection}"
                    out[stem_key + ".lora_A.weight"] = a_e.clone()
                    out[stem_key + ".lora_B.weight"] = rows.clone()
    return out


def halves(parameter, b, family):
    if parameter == "down_proj":
        return {"down_proj": b}
    if family == "gpt_oss":
        return {"gate_proj": b[0::2], "up_proj": b[1::2]}
    gate, up = b.chunk(2)
    return {"gate_proj": gate, "up_proj": up}


def random_per_expert(model, name, names, rank, scale, only=None):
    config = json.loads((common.HERE / model / "config.json").read_text())
    hidden = config["hidden_size"]
    inter = config.get("moe_intermediate_size", config["intermediate_size"])
    experts = config.get("num_local_experts") or config["num_experts"]
    plain = common.plain_tensors(common.HERE / model)
    random, out = numpy.random.default_rng(seed_of(model, name)), {}
    for layer in range(config["num_hidden_layers"]):
        if not any(n.startswith(f"model.layers.{layer}.mlp.experts.") for n in plain):
            continue
        for expert in range(experts):
            for projection, (rows, inner) in zip(names, ((inter, hidden), (inter, hidden), (hidden, inter)), strict=True):
                if only and projection not in only:
                    continue
                key = f"{PREFIX}model.layers.{layer}.mlp.experts.{expert}.{projection}"
                out[key + ".lora_A.weight"] = rounded(random, (rank, inner), inner ** -0.5)
                out[key + ".lora_B.weight"] = rounded(random, (rows, rank), 0.7 / (scale * rank ** 0.5))
    return out


def make():
    names = ["gate_proj", "up_proj", "down_proj"]
    for model, origin in (("gptoss-bf16", "peft0.18-fused-both"), ("gptoss-mxfp4", "peft0.18-fused-both"),
                          ("qwen3moe-norm", "peft0.21-fused-both"), ("qwen3moe-nonorm", "peft0.21-fused-both")):
        adapter, config, golden = source(model, origin)
        value = write(model, "converted-per-expert-from-fused", split_experts(model, adapter, config),
                      config_fields(model, target_modules=names), f"equal to {origin}; gate and up share A")
        same, worst = common.largest_difference(value["prompts"], golden["prompts"])
        if not same or worst > 1e-3:
            raise SystemExit(f"{model}: conversion differs from {origin} by {worst}")
    for model in ("gptoss-bf16", "gptoss-mxfp4"):
        write(model, "own-per-expert", random_per_expert(model, "own-per-expert", names, 2, 4),
              config_fields(model, target_modules=names, r=2), "gate and up have an A each")
    write("gptoss-bf16", "own-per-expert-w1-w3-w2",
          random_per_expert("gptoss-bf16", "own-per-expert-w1-w3-w2", ["w1", "w3", "w2"], 2, 4),
          config_fields("gptoss-bf16", target_modules=["w1", "w2", "w3"], r=2), "w1 gate, w3 up, w2 down")
    write("gptoss-mxfp4", "own-per-expert-up-only",
          random_per_expert("gptoss-mxfp4", "own-per-expert-up-only", names, 3, 8 / 3, only=["up_proj"]),
          config_fields("gptoss-mxfp4", target_modules=["up_proj"], r=3), "no delta on gate")
    for model, origin in (("gptoss-mxfp4", "peft0.18-fused-gate-up"), ("qwen3moe-norm", "peft0.21-fused-gate-up")):
        adapter, config, _ = source(model, origin)
        adapter = {**adapter, **random_per_expert(model, "own-mixed", names, 4, 2, only=["down_proj"])}
        config = {**config, "target_modules": ["down_proj"]}
        write(model, "own-mixed-fused-gate-up-per-expert-down", adapter, config, f"gate_up is that of {origin}")
    adapter, config, _ = source("gptoss-mxfp4", "peft0.18-attention")
    write("gptoss-mxfp4", "own-default-infix",
          {re.sub(r"\.lora_([AB])\.weight$", r".lora_\1.default.weight", k): v for k, v in adapter.items()},
          config, "peft0.18-attention with an adapter name in its keys; PEFT itself does not read that")
    write("gptoss-mxfp4", "own-all-b-zero",
          {k: torch.zeros_like(v) if ".lora_B." in k else v for k, v in adapter.items()},
          config, "changes nothing: loads, with a warning")


def make_shared():
    """One A into all experts, one B out of all of them."""
    names = {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}
    w_names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    both = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    forms = (
        ("gptoss-mxfp4", "own-shared-outer-w1-w3-w2", lambda p: shared_experts.stacked_keys(p, PREFIX, w_names),
         {"target_modules": list(names)}, "SGLang's names; w1 gate, w3 up, w2 down"),
        ("qwen3moe-norm", "converted-shared-outer", lambda p: shared_experts.single_keys(p, PREFIX),
         {"target_modules": list(names), "peft_version": "0.18.1"},
         "Megatron-Bridge's form: what the experts share, and the rest expert by expert"),
        ("qwen3moe-nonorm", "own-shared-outer-gate-up", lambda p: shared_experts.gate_up_keys(p, PREFIX),
         {"target_parameters": both}, "gate_up_proj in one, rows gate, then up"),
        ("gptoss-bf16", "converted-shared-outer-flat", lambda p: shared_experts.flat_keys(p, PREFIX),
         {"target_parameters": both, "peft_version": "0.18.1"}, "PEFT's flat keys, the shared side not repeated"))
    for model, name, keys, fields, note in forms:
        config = json.loads((common.HERE / model / "config.json").read_text())
        experts = config.get("num_local_experts") or config["num_experts"]
        layers = sorted({int(n.split(".")[2]) for n in common.plain_tensors(common.HERE / model) if ".experts." in n})
        adapter = keys(shared_experts.random_shared_outer(model, name, config, layers, 4, 2))
        peft_config = config_fields(model, **fields)
        value = write(model, name, adapter, peft_config, note)
        if name.startswith("converted"):
            if peft_config["target_modules"]:  # PEFT takes the same names for those of dense layers
                peft_config["target_modules"] = r".*\.experts\.\d+\..*_proj"
            compare_with_peft(model, shared_experts.expanded(adapter, experts), peft_config, value)


def compare_with_peft(model, adapter, config, value):
    with tempfile.TemporaryDirectory() as folder:
        save_file({k: v.clone().contiguous() for k, v in adapter.items()}, Path(folder) / "adapter_model.safetensors")
        (Path(folder) / "adapter_config.json").write_text(json.dumps(config))
        ids = {prompt["name"]: prompt["ids"] for prompt in value["prompts"]}
        here = common.record(read(model, folder), ids, list(ids), common.ADAPTER_STEPS)
    same, worst = common.largest_difference(value["prompts"], here)
    print(f"{value['model']}/{value['adapter']}: PEFT with one matrix for each expert: tokens "
          f"{'equal' if same else 'DIFFER'}, largest difference {worst:.2e}")
    if not same or worst > 1e-3:
        raise SystemExit(1)


def verify():
    bad = 0
    for path in sorted(common.HERE.glob("*/adapters/*/golden.json")):
        stored = json.loads(path.read_text())
        adapter, config, _ = source(stored["model"], stored["adapter"])
        plain_pairs = not (config.get("rank_pattern") or config.get("alpha_pattern") or config.get("use_dora"))
        if not plain_pairs or any("lora_embedding" in k or "base_layer.weight" in k for k in adapter):
            continue
        here = answers(stored["model"], adapter, config, ["page", "long"])
        there = [p for p in stored["prompts"] if p["name"] in ("page", "long")]
        same, worst = common.largest_difference(there, here)
        print(f"{stored['model']}/{stored['adapter']}: tokens {'equal' if same else 'DIFFER'}, "
              f"largest difference {worst:.2e}", flush=True)
        bad += not same
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    command = sys.argv[1] if len(sys.argv) == 2 else ""
    if command == "make":
        make()
    elif command == "shared":
        make_shared()
    elif command == "verify":
        verify()
    else:
        raise SystemExit(__doc__)
