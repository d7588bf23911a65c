"""Writes adapters with PEFT, reads each back with PEFT, and records what the reference answers with it.

    python make_adapters.py make [NAME ...]   those of ADAPTERS that belong to the PEFT and transformers at hand
    python make_adapters.py check             reads every stored PEFT adapter that the libraries at hand can read

NAME is model/adapter or a part of it. Run it once for each pair of versions that README.md lists.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy
import peft
import torch
from safetensors.torch import load_file, save_file

import common

PEFT = ".".join(peft.__version__.split(".")[:2])
ENVIRONMENT = f"peft{PEFT}-t{5 if common.TRANSFORMERS_5 else 4}"

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
OLD, NEW = "peft0.18-t4", "peft0.21-t5"


def lora(**fields):
    return {"r": 4, "lora_alpha": 8, **fields}


def fused(*parameters, **fields):
    """Only parameters: PEFT needs a target_modules that says none, else it takes its default for the family."""
    return lora(target_modules=[], target_parameters=list(parameters), **fields)


# (models, environments, name, LoraConfig fields, extras)
# extras: float32 (store the weights so; else bfloat16), drop_version, embeddings (let PEFT store embedding weights)
ADAPTERS = []


def add(models, environments, name, fields, **extras):
    for model in models.split():
        for environment in environments.split():
            prefix = environment.split("-")[0]
            if model.startswith("qwen3moe") and environment == "peft0.18-t5":
                prefix = "peft0.18-transformers5"
            ADAPTERS.append((model, environment, f"{prefix}-{name}", fields, extras))


GPT_OSS, QWEN_MOE = "gptoss-bf16 gptoss-mxfp4", "qwen3moe-norm qwen3moe-nonorm"
DENSE = "qwen3-tied qwen3-untied llama3-untied llama3-tied"

add(GPT_OSS, f"{OLD} {NEW}", "attention", lora(target_modules=ATTENTION))
add(GPT_OSS, f"{OLD} {NEW}", "fused-gate-up", fused(GATE_UP))
add(GPT_OSS, f"{OLD} {NEW}", "fused-down", fused(DOWN))
add(GPT_OSS, f"{OLD} {NEW} peft0.19-t5", "fused-both", fused(GATE_UP, DOWN))
add(GPT_OSS, f"{NEW}", "fused-both-other-order", fused(DOWN, GATE_UP, r=3, lora_alpha=3))
add(GPT_OSS, f"{OLD} {NEW}", "fused-both-rank-equals-experts", fused(GATE_UP, DOWN, r=8, lora_alpha=8))
add(GPT_OSS, "peft0.17-t4", "fused-gate-up", fused(GATE_UP))
add(GPT_OSS, "peft0.17-t4", "fused-down", fused(DOWN))
add(GPT_OSS, f"{OLD} {NEW}", "fused-down-no-version", fused(DOWN, r=2), drop_version=True)
add(GPT_OSS, f"{OLD} {NEW}", "attention-and-experts-rslora",
    lora(r=3, lora_alpha=5, use_rslora=True, target_modules=ATTENTION, target_parameters=[GATE_UP, DOWN]))
add("gptoss-mxfp4", f"{OLD} {NEW}", "router", fused("mlp.router.weight", r=2))
add("gptoss-mxfp4", f"{OLD} {NEW}", "everything",
    lora(r=2, lora_alpha=7, target_modules=[*ATTENTION, "lm_head"],
         target_parameters=[GATE_UP, DOWN, "mlp.router.weight"]), float32=True)
add("gptoss-bf16", OLD, "attention-patterns",
    lora(target_modules=ATTENTION, rank_pattern={"q_proj": 8, "layers.0.self_attn.v_proj": 1},
         alpha_pattern={"o_proj": 3, r"layers\.[12]\.self_attn\.k_proj": 20}))
add("gptoss-bf16", OLD, "lm-head", lora(target_modules=["lm_head"]))
add("gptoss-bf16", OLD, "embed-tokens", lora(target_modules=["embed_tokens"]))
add("gptoss-bf16", OLD, "lm-head-with-base-weights", lora(target_modules=["lm_head"]), embeddings=True)
add("gptoss-bf16", OLD, "attention-one-layer", lora(target_modules=["q_proj", "v_proj"], layers_to_transform=[1]))
add("gptoss-bf16", NEW, "attention-regex", lora(target_modules=r".*layers\.[02]\.self_attn\.(q|o)_proj"))
add("gptoss-bf16", NEW, "all-linear", lora(target_modules="all-linear", exclude_modules=["k_proj"]))

add(QWEN_MOE, f"{OLD} {NEW}", "attention", lora(target_modules=ATTENTION))
add(QWEN_MOE, OLD, "per-expert", lora(target_modules=MLP, r=2, lora_alpha=4))
add(QWEN_MOE, OLD, "per-expert-down", lora(target_modules=r".*experts\.\d+\.down_proj", r=2))
add(QWEN_MOE, OLD, "per-expert-up-of-some",
    lora(target_modules=r".*experts\.[035]\.up_proj", r=3, use_rslora=True))
add("qwen3moe-norm", OLD, "per-expert-patterns",
    lora(target_modules=MLP, r=2, rank_pattern={r"experts\.1\.gate_proj": 5}, alpha_pattern={"down_proj": 3}))
add(QWEN_MOE, OLD, "attention-experts-router", lora(target_modules=[*ATTENTION, *MLP, "gate"], r=2))
add("qwen3moe-norm", OLD, "all-linear", lora(target_modules="all-linear", r=1, lora_alpha=2))
add(QWEN_MOE, "peft0.18-t5 peft0.19-t5 peft0.21-t5", "fused-both", fused(GATE_UP, DOWN))
add(QWEN_MOE, "peft0.18-t5 peft0.21-t5", "fused-gate-up", fused(GATE_UP))
add(QWEN_MOE, "peft0.18-t5 peft0.21-t5", "fused-down", fused(DOWN))
add(QWEN_MOE, NEW, "fused-both-rank-equals-experts", fused(GATE_UP, DOWN, r=8))
add(QWEN_MOE, NEW, "router", fused("mlp.gate.weight", r=2))
add(QWEN_MOE, NEW, "everything-rslora",
    lora(r=3, lora_alpha=4, use_rslora=True, target_modules=[*ATTENTION, "lm_head"],
         target_parameters=[GATE_UP, DOWN, "mlp.gate.weight"]), float32=True)

add(DENSE, f"{OLD} {NEW}", "attention", lora(target_modules=ATTENTION))
add(DENSE, f"{OLD} {NEW}", "all-linear", lora(target_modules="all-linear", r=8))
add("qwen3-untied llama3-untied", OLD, "mlp-rslora", lora(target_modules=MLP, r=16, use_rslora=True))
add("qwen3-untied llama3-untied", OLD, "lm-head-and-embed", lora(target_modules=["lm_head", "embed_tokens"]))
add("llama3-untied", NEW, "patterns",
    lora(target_modules=[*ATTENTION, *MLP], rank_pattern={"down_proj": 7, r"layers\.1\.mlp\.up_proj": 2},
         alpha_pattern={"q_proj": 1}, layers_to_transform=[0, 1], layers_pattern="layers"))
add("llama3-tied qwen3-tied", NEW, "dora", lora(target_modules=["q_proj", "down_proj"], use_dora=True))
add("llama3-tied", OLD, "dora-all", lora(target_modules=[*ATTENTION, *MLP], use_dora=True, r=2))


def seed_of(model, name):
    return sum(ord(c) * (i + 1) for i, c in enumerate(f"{model}/{name}"))


def rounded(random, shape, std):
    return torch.from_numpy(random.normal(0.0, std, tuple(shape)).astype("float32")).bfloat16()


def randomise(model, seed, gain=0.7):
    """Every A and B non-zero, and a delta of about `gain` times a weight's usual size, whatever rank and scale."""
    random = numpy.random.default_rng(seed)
    for _, module in sorted(model.named_modules()):
        if not hasattr(module, "lora_A") or "default" not in getattr(module, "scaling", {}):
            continue
        rank, scale = module.r["default"], module.scaling["default"]
        if "default" in module.lora_embedding_A:
            a, b = module.lora_embedding_A["default"], module.lora_embedding_B["default"]
            a_std = 1.0
        else:
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            a_std = a.shape[1] ** -0.5
        a.data = rounded(random, a.shape, a_std).to(a.dtype)
        b.data = rounded(random, b.shape, gain / (scale * rank ** 0.5)).to(b.dtype)
        if "default" in getattr(module, "lora_magnitude_vector", {}):
            magnitude = module.lora_magnitude_vector["default"].weight
            factor = torch.from_numpy(random.normal(1.0, 0.2, tuple(magnitude.shape)).astype("float32"))
            magnitude.data = (magnitude.data * factor).bfloat16().to(magnitude.dtype)


def describe(folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    return {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in sorted(tensors.items())}


def make(model, name, fields, extras):
    folder = common.HERE / model / "adapters" / name
    seed = seed_of(model, name)
    wrapped = peft.get_peft_model(common.load_reference(common.HERE / model),
                                  peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **fields))
    randomise(wrapped, seed)
    if not extras.get("float32"):
        for key, parameter in wrapped.named_parameters():
            if "lora_" in key:
                parameter.data = parameter.data.bfloat16()
    wrapped.save_pretrained(folder, save_embedding_layers=bool(extras.get("embeddings")))
    (folder / "README.md").unlink(missing_ok=True)
    tidy_config(folder, extras)

    reference = read(model, folder)
    for key, parameter in wrapped.named_parameters():
        parameter.data = parameter.data.float()
    base = json.loads((common.HERE / model / "golden.json").read_text())
    ids = {prompt["name"]: prompt["ids"] for prompt in base["prompts"]}
    written, _ = common.greedy(wrapped.eval(), ids["long"], 4)
    loaded, _ = common.greedy(reference, ids["long"], 4)
    if written != loaded:
        raise SystemExit(f"{model}/{name}: PEFT answers differently after writing and reading")
    value = {
        "model": model, "adapter": name, "reference": "peft", "dtype": "float32", "seed": seed,
        "versions": common.versions(), "ignore_eos": True,
        "prompts": common.record(reference, ids, common.ADAPTER_PROMPTS, common.ADAPTER_STEPS),
    }
    common.write_json(folder / "golden.json", value)
    plain = {prompt["name"]: prompt["tokens"][: common.ADAPTER_STEPS] for prompt in base["prompts"]}
    changed = [prompt["name"] for prompt in value["prompts"] if prompt["tokens"] != plain[prompt["name"]]]
    print(f"{model}/{name}: {len(describe(folder))} tensors, differs from base on {changed}")
    return changed


def tidy_config(folder, extras):
    """PEFT writes sets in any order and the path of the base; both are made stable."""
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = folder.parent.parent.name
    for key in ("target_modules", "exclude_modules"):
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    if extras.get("drop_version"):
        config.pop("peft_version", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def read(model, folder):
    """The adapter as PEFT itself reads it from disk, every number in float32."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped = peft.PeftModel.from_pretrained(common.load_reference(common.HERE / model), folder)
    for warning in caught:
        if "missing adapter keys" in str(warning.message):
            raise SystemExit(f"{folder}: {warning.message}")
    for key, parameter in wrapped.named_parameters():
        if parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    return wrapped.eval()


def check():
    for path in sorted(common.HERE.glob("*/adapters/*/golden.json")):
        stored = json.loads(path.read_text())
        if stored["reference"] != "peft":
            continue
        ids = {prompt["name"]: prompt["ids"] for prompt in stored["prompts"]}
        try:
            here = common.record(read(stored["model"], path.parent), ids, list(ids), common.ADAPTER_STEPS)
            same, worst = common.largest_difference(stored["prompts"], here)
            verdict = f"tokens {'equal' if same else 'DIFFER'}, largest difference {worst:.2e}"
        except (SystemExit, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            verdict = f"cannot be read here: {str(error).splitlines()[0][:140]}"
        print(f"{ENVIRONMENT} {stored['model']}/{stored['adapter']}: {verdict}", flush=True)


def main(arguments):
    if arguments[:1] == ["check"]:
        return check()
    if arguments[:1] != ["make"]:
        raise SystemExit(__doc__)
    for model, environment, name, fields, extras in ADAPTERS:
        wanted = arguments[1:]
        if environment == ENVIRONMENT and (not wanted or any(w in f"{model}/{name}" for w in wanted)):
            if not make(model, name, fields, extras):
                raise SystemExit(f"{model}/{name} changes nothing")


if __name__ == "__main__":
    main(sys.argv[1:])
