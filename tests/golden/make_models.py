"""Writes the random tiny checkpoints and what transformers answers on them.

    python make_models.py make [MODEL ...]    checkpoint + golden.json (MODEL: a key of MODELS; default all)
    python make_models.py check [MODEL ...]   compares golden.json with the transformers at hand
    python make_models.py search MODEL        tries seeds, prints how healthy each one's top-2 gaps are
"""

import json
import sys

import numpy
import torch
from safetensors.torch import save_file

import common

ROPE_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
             "rope_type": "yarn", "truncate": False}


def gpt_oss(hidden, inter, layers, experts, top_k, heads, kv_heads, head_dim, window, vocab, mxfp4, v5, rope):
    config = {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
        "eos_token_id": vocab - 2, "experts_per_token": top_k, "head_dim": head_dim, "hidden_act": "silu",
        "hidden_size": hidden, "initial_context_length": rope["original_max_position_embeddings"],
        "initializer_range": 0.02, "intermediate_size": inter,
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)],
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": heads,
        "num_experts_per_tok": top_k, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "num_local_experts": experts, "output_router_logits": False, "pad_token_id": vocab - 3,
        "rms_norm_eps": 1e-05, "router_aux_loss_coef": 0.9, "sliding_window": window, "swiglu_limit": 7.0,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": vocab,
    }
    if mxfp4:
        config["quantization_config"] = {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                       "model.embed_tokens", "lm_head"],
            "quant_method": "mxfp4"}
    return spelled(config, 150000, rope, v5)


def qwen3_moe(hidden, moe_inter, inter, layers, experts, top_k, heads, kv_heads, head_dim, vocab, norm, v5,
              mlp_only=(), sparse_step=1):
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": vocab - 3, "decoder_sparse_step": sparse_step, "eos_token_id": vocab - 2,
        "head_dim": head_dim, "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.02,
        "intermediate_size": inter, "max_position_embeddings": 40960, "max_window_layers": layers,
        "mlp_only_layers": list(mlp_only), "model_type": "qwen3_moe", "moe_intermediate_size": moe_inter,
        "norm_topk_prob": norm, "num_attention_heads": heads, "num_experts": experts,
        "num_experts_per_tok": top_k, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "output_router_logits": False, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "tie_word_embeddings": False, "use_cache": True,
        "use_sliding_window": False, "vocab_size": vocab,
    }
    return spelled(config, 1000000.0, None, v5)


def qwen3(hidden, inter, layers, heads, kv_heads, head_dim, vocab, tied, v5):
    config = {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": vocab - 3, "eos_token_id": vocab - 2, "head_dim": head_dim, "hidden_act": "silu",
        "hidden_size": hidden, "initializer_range": 0.02, "intermediate_size": inter,
        "max_position_embeddings": 40960, "max_window_layers": layers, "model_type": "qwen3",
        "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06, "sliding_window": None, "tie_word_embeddings": tied, "use_cache": True,
        "use_sliding_window": False, "vocab_size": vocab,
    }
    return spelled(config, 1000000, None, v5)


def llama(hidden, inter, layers, heads, kv_heads, head_dim, vocab, tied, v5):
    config = {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": vocab - 4, "eos_token_id": [vocab - 3, vocab - 2, vocab - 1], "head_dim": head_dim,
        "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.02, "intermediate_size": inter,
        "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
        "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "tie_word_embeddings": tied, "use_cache": True,
        "vocab_size": vocab,
    }
    # A short original context, so that both ends of the ramp lie among this head size's frequencies.
    rope = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64, "rope_type": "llama3"}
    return spelled(config, 500000.0, rope, v5)


def spelled(config, theta, rope, v5):
    """Adds the rope fields and the type as transformers 5 writes them, or as 4 does."""
    if v5:
        config["rope_parameters"] = {"rope_theta": theta, **(rope or {"rope_type": "default"})}
        config["dtype"] = "bfloat16"
        config["transformers_version"] = "5.0.0"
    else:
        config["rope_theta"] = theta
        config["rope_scaling"] = rope
        config["torch_dtype"] = "bfloat16"
        config["transformers_version"] = "4.57.0"
    return dict(sorted(config.items()))


# name: (config, seed)
MODELS = {
    # gate_up is square (H = 2I), so a fused adapter's two sides cannot be told apart by shape there.
    "gptoss-bf16": (gpt_oss(64, 32, 3, 8, 2, 4, 2, 16, 8, 256, False, False,
                            {**ROPE_YARN, "original_max_position_embeddings": 512}), 8),
    # down is square (H = I), as in the published checkpoint; head size as published.
    "gptoss-mxfp4": (gpt_oss(64, 64, 4, 8, 4, 4, 1, 64, 20, 320, True, True, ROPE_YARN), 5),
    "qwen3moe-norm": (qwen3_moe(64, 32, 96, 3, 8, 2, 4, 2, 128, 256, True, False, mlp_only=[1]), 16),
    "qwen3moe-nonorm": (qwen3_moe(64, 64, 96, 4, 8, 3, 4, 2, 32, 320, False, True, sparse_step=2), 15),
    "qwen3-tied": (qwen3(64, 160, 3, 4, 2, 32, 256, True, False), 2),
    "qwen3-untied": (qwen3(64, 160, 2, 4, 1, 128, 320, False, True), 5),
    "llama3-untied": (llama(64, 160, 3, 4, 2, 32, 256, False, False), 4),
    "llama3-tied": (llama(96, 128, 2, 4, 2, 64, 320, True, True), 17),
}


class Random:
    """Normal tensors whose values bfloat16 holds exactly."""

    def __init__(self, seed):
        self.generator = numpy.random.default_rng(seed)

    def normal(self, *shape, std, mean=0.0):
        return torch.from_numpy(self.generator.normal(mean, std, shape).astype("float32")).bfloat16()

    def linear(self, out, inner, gain=1.0):
        return self.normal(out, inner, std=gain * inner ** -0.5)

    def bias(self, *shape, std=0.3):
        return self.normal(*shape, std=std)

    def norm(self, size):
        return self.normal(size, std=0.2, mean=1.0)

    def mxfp4(self, name, experts, out, inner, gain):
        """Uniform nibbles; scales three octaves wide, about a standard deviation of gain * inner ** -0.5."""
        middle = 127 + round(float(numpy.log2(gain * inner ** -0.5 / 2.93)))
        scales = self.generator.integers(middle - 1, middle + 2, (experts, out, inner // 32)).astype("uint8")
        scales.reshape(-1)[::97] = middle - 9
        blocks = self.generator.integers(0, 256, (experts, out, inner // 32, 16)).astype("uint8")
        return {name + "_blocks": torch.from_numpy(blocks), name + "_scales": torch.from_numpy(scales)}


def attention(random, config, prefix, tensors):
    hidden, dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    for name, out, inner in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
        tensors[f"{prefix}self_attn.{name}_proj.weight"] = random.linear(out, inner)
        if config["attention_bias"]:
            tensors[f"{prefix}self_attn.{name}_proj.bias"] = random.bias(out)
    if config["model_type"] == "gpt_oss":
        tensors[prefix + "self_attn.sinks"] = random.normal(config["num_attention_heads"], std=1.0, mean=0.5)
    if config["model_type"] in ("qwen3", "qwen3_moe"):
        tensors[prefix + "self_attn.q_norm.weight"] = random.normal(dim, std=0.2, mean=1.2)
        tensors[prefix + "self_attn.k_norm.weight"] = random.normal(dim, std=0.2, mean=1.2)


def gpt_oss_experts(random, config, prefix, tensors):
    experts, hidden, inter = config["num_local_experts"], config["hidden_size"], config["intermediate_size"]
    tensors[prefix + "mlp.router.weight"] = random.linear(experts, hidden, gain=1.5)
    tensors[prefix + "mlp.router.bias"] = random.bias(experts)
    # Gate and up are wide enough that a few in a hundred meet the clamp at 7.
    for name, out, inner, gain in (("gate_up_proj", 2 * inter, hidden, 3.0), ("down_proj", hidden, inter, 0.3)):
        key = f"{prefix}mlp.experts.{name}"
        if "quantization_config" in config:
            tensors.update(random.mxfp4(key, experts, out, inner, gain))
        else:
            weights = random.linear(experts * out, inner, gain).view(experts, out, inner)
            tensors[key] = weights.transpose(1, 2).contiguous()
        tensors[key + "_bias"] = random.bias(experts, out)


def swiglu(random, hidden, inter, prefix, tensors):
    tensors[prefix + "gate_proj.weight"] = random.linear(inter, hidden, gain=1.6)
    tensors[prefix + "up_proj.weight"] = random.linear(inter, hidden, gain=1.6)
    tensors[prefix + "down_proj.weight"] = random.linear(hidden, inter)


def is_sparse(config, layer):
    return (config["model_type"] == "qwen3_moe" and layer not in config["mlp_only_layers"]
            and (layer + 1) % config["decoder_sparse_step"] == 0)


def checkpoint(config, seed):
    random, hidden = Random(seed), config["hidden_size"]
    tied = config["tie_word_embeddings"]
    tensors = {"model.embed_tokens.weight": random.normal(config["vocab_size"], hidden, std=0.4 if tied else 0.7)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = random.norm(hidden)
        tensors[prefix + "post_attention_layernorm.weight"] = random.norm(hidden)
        attention(random, config, prefix, tensors)
        if config["model_type"] == "gpt_oss":
            gpt_oss_experts(random, config, prefix, tensors)
        elif is_sparse(config, layer):
            tensors[prefix + "mlp.gate.weight"] = random.linear(config["num_experts"], hidden, gain=1.5)
            for expert in range(config["num_experts"]):
                swiglu(random, hidden, config["moe_intermediate_size"], f"{prefix}mlp.experts.{expert}.", tensors)
        else:
            swiglu(random, hidden, config["intermediate_size"], prefix + "mlp.", tensors)
    # With a tied head a final norm of one sign would make every token predict itself.
    tensors["model.norm.weight"] = random.normal(hidden, std=1.0) if tied else random.norm(hidden)
    if not tied:
        tensors["lm_head.weight"] = random.linear(config["vocab_size"], hidden, gain=3.0)
    return tensors


def generation_config(config):
    fields = {"do_sample": True, "transformers_version": config["transformers_version"]}
    vocab = config["vocab_size"]
    if config["model_type"] == "gpt_oss":
        return {"bos_token_id": vocab - 4, "eos_token_id": [vocab - 2, vocab - 3, vocab - 1],
                "pad_token_id": vocab - 3, **fields}
    if config["model_type"] == "llama":
        return {"bos_token_id": vocab - 4, "eos_token_id": [vocab - 3, vocab - 2, vocab - 1],
                "temperature": 0.6, "top_p": 0.9, **fields}
    return {"bos_token_id": vocab - 3, "eos_token_id": [vocab - 2, vocab - 3], "pad_token_id": vocab - 3,
            "temperature": 0.6, "top_k": 20, "top_p": 0.95, **fields}


def write_checkpoint(name, seed):
    folder, config = common.HERE / name, MODELS[name][0]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation_config(config), indent=2) + "\n")
    save_file(checkpoint(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def router_share(model, ids):
    """Share of each layer's experts that the prompt reaches, least over the layers; None without experts."""
    seen = []
    hooks = []
    for name, module in model.named_modules():
        if name.endswith((".mlp.router", ".mlp.gate")):
            top_k = getattr(model.config, "num_experts_per_tok")
            experts = module.weight.shape[0]

            def note(module, inputs, output, experts=experts, top_k=top_k):
                hidden = inputs[0].reshape(-1, inputs[0].shape[-1])
                logits = torch.nn.functional.linear(hidden, module.weight, getattr(module, "bias", None))
                seen.append(len(torch.topk(logits, top_k, dim=-1).indices.unique()) / experts)
            hooks.append(module.register_forward_hook(note))
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return round(min(seen), 3) if seen else None


def golden(name, seed):
    folder = common.HERE / name
    model = common.load_reference(folder)
    ids = common.prompts(MODELS[name][0]["vocab_size"], seed)
    return {
        "model": name, "adapter": None, "reference": "transformers", "dtype": "float32", "seed": seed,
        "versions": common.versions(), "ignore_eos": True,
        "experts_reached_by_long_prompt": router_share(model, ids["long"]),
        "prompts": common.record(model, ids, common.PROMPT_LENGTHS, common.BASE_STEPS),
    }


def make(name):
    folder = write_checkpoint(name, MODELS[name][1])
    value = golden(name, MODELS[name][1])
    common.write_json(folder / "golden.json", value)
    print(name, (folder / "model.safetensors").stat().st_size, health(value))


def health(value):
    gaps = sorted(gap for prompt in value["prompts"] for gap in prompt["gaps"])
    tokens = [len(set(prompt["tokens"])) for prompt in value["prompts"]]
    return {"least_gap": gaps[0], "tenth": gaps[len(gaps) // 10], "median": gaps[len(gaps) // 2],
            "distinct_tokens": tokens, "experts": value["experts_reached_by_long_prompt"]}


def check(name):
    stored = json.loads((common.HERE / name / "golden.json").read_text())
    same, worst = common.largest_difference(stored["prompts"], golden(name, stored["seed"])["prompts"])
    print(f"{name}: stored by {stored['versions']}, here {common.versions()}: "
          f"tokens {'equal' if same else 'DIFFER'}, largest difference {worst:.2e}")
    return same and worst < 1e-3


def search(name):
    for seed in range(1, 25):
        write_checkpoint(name, seed)
        print(seed, health(golden(name, seed)))


def main(arguments):
    command, names = arguments[0], arguments[1:] or list(MODELS)
    if command == "search":
        search(names[0])
    elif command == "make":
        for name in names:
            make(name)
    elif command == "check":
        raise SystemExit(0 if all([check(name) for name in names]) else 1)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:] or [""])
