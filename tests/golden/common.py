"""What the golden scripts share: reading a checkpoint into a float32 reference, greedy decoding, records."""

import json
import platform
from pathlib import Path

import numpy
import torch
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
PROMPT_LENGTHS = {"one": 1, "short": 7, "page": 23, "long": 60}
ADAPTER_PROMPTS = ("short", "page", "long")
BASE_STEPS, ADAPTER_STEPS = 24, 16
TRANSFORMERS_5 = int(transformers.__version__.split(".")[0]) >= 5

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


def versions():
    found = {"python": platform.python_version(), "torch": torch.__version__,
             "transformers": transformers.__version__, "numpy": numpy.__version__}
    try:
        import peft
        found["peft"] = peft.__version__
    except ImportError:
        pass
    return found


def write_json(path, value):
    """Compact JSON with one line for each member of the outermost object."""
    lines = [f"{json.dumps(k)}:{json.dumps(v, ensure_ascii=False, separators=(',', ':'))}"
             for k, v in value.items()]
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def prompts(vocab_size, seed):
    """Token ids; the last four ids of the vocabulary are kept for special tokens."""
    random = numpy.random.default_rng(seed)
    return {name: [int(x) for x in random.integers(0, vocab_size - 4, length)]
            for name, length in PROMPT_LENGTHS.items()}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantize_mxfp4(blocks, scales):
    """(E, out, in/32, 16) packed pairs, low nibble first, and E8M0 scales -> (E, in, out) float32."""
    pairs = torch.stack([E2M1[(blocks & 15).long()], E2M1[(blocks >> 4).long()]], dim=-1)
    values = pairs.flatten(-2) * torch.exp2(scales.float() - 127).unsqueeze(-1)
    return values.flatten(-2).transpose(1, 2).contiguous()


def plain_tensors(folder):
    """The checkpoint's tensors in float32, MXFP4 pairs replaced by the parameter they stand for."""
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_blocks")]:
        stem = name.removesuffix("_blocks")
        tensors[stem] = dequantize_mxfp4(tensors.pop(name), tensors.pop(stem + "_scales"))
    return {name: tensor.float() for name, tensor in tensors.items()}


def read_config(folder):
    """config.json for the transformers at hand. Version 4 knows rope_theta and rope_scaling only."""
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("quantization_config", None)
    fields.pop("torch_dtype", None)
    fields.pop("dtype", None)
    if not TRANSFORMERS_5 and "rope_parameters" in fields:
        rope = dict(fields.pop("rope_parameters"))
        fields["rope_theta"] = rope.pop("rope_theta")
        fields["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    return transformers.AutoConfig.for_model(**fields)


def fuse_experts(tensors):
    """Per-expert gate, up and down -> gate_up_proj (E, 2I, H) and down_proj (E, H, I), as transformers 5 holds them."""
    fused, experts = {}, {}
    for name, tensor in tensors.items():
        stem, found, rest = name.partition(".mlp.experts.")
        if found:
            index, projection = rest.split(".")[:2]
            experts.setdefault(stem + found, {}).setdefault(projection, {})[int(index)] = tensor
        else:
            fused[name] = tensor
    for stem, of in experts.items():
        stack = {p: torch.stack([of[p][i] for i in range(len(of[p]))]) for p in of}
        fused[stem + "gate_up_proj"] = torch.cat([stack["gate_proj"], stack["up_proj"]], dim=1)
        fused[stem + "down_proj"] = stack["down_proj"]
    return fused


def load_reference(folder, tensors=None):
    """The checkpoint (or the given tensors) in transformers' own model, float32, plain attention, on the CPU."""
    config = read_config(folder)
    config._attn_implementation = "eager"
    if TRANSFORMERS_5:
        config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", torch_dtype=torch.float32)
    tensors = dict(plain_tensors(folder) if tensors is None else tensors)
    if TRANSFORMERS_5 and config.model_type == "qwen3_moe":
        tensors = fuse_experts(tensors)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if config.tie_word_embeddings:
        missing = [name for name in missing if name != "lm_head.weight"]
        model.tie_weights()
    if missing or unexpected:
        raise SystemExit(f"{folder}: missing {missing}, unexpected {unexpected}")
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise SystemExit("the reference is not float32")
    return model.eval()


@torch.no_grad()
def greedy(model, ids, steps):
    """Greedy decoding without a KV cache: each step is a full forward pass. End tokens do not stop it."""
    out, ids = [], list(ids)
    first = None
    for _ in range(steps):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        if first is None:
            first = logits
        logprobs = torch.log_softmax(logits.double(), dim=-1)
        top = torch.topk(logprobs, 5)
        out.append((int(top.indices[0]), [int(i) for i in top.indices], [float(v) for v in top.values]))
        ids.append(out[-1][0])
    return out, first


def record_prompt(model, name, ids, steps):
    out, first = greedy(model, ids, steps)
    return {
        "name": name,
        "ids": ids,
        "tokens": [token for token, _, _ in out],
        "logprobs": [round(lp[0], 6) for _, _, lp in out],
        "gaps": [round(lp[0] - lp[1], 6) for _, _, lp in out],
        "top5_ids": [top for _, top, _ in out],
        "top5_logprobs": [[round(v, 6) for v in lp] for _, _, lp in out],
        "last_logits": [round(float(v), 6) for v in first[:32]],
        "last_logits_sum": round(float(first.double().sum()), 5),
        "last_logits_abs_sum": round(float(first.double().abs().sum()), 5),
    }


def record(model, prompt_ids, names, steps):
    return [record_prompt(model, name, prompt_ids[name], steps) for name in names]


def largest_difference(a, b):
    """(tokens equal, largest difference of any recorded logprob) of two lists of prompt records."""
    same = all(x["tokens"] == y["tokens"] for x, y in zip(a, b, strict=True))
    worst = max(abs(p - q) for x, y in zip(a, b, strict=True)
                for p, q in zip(x["logprobs"] + x["last_logits"], y["logprobs"] + y["last_logits"], strict=True))
    return same, worst
