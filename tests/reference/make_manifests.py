"""Writes manifests/*.json: the tensors of published checkpoints (names, shapes, types; no data) and their configs.

    python make_manifests.py      with transformers 4.57, whose models on the meta device confirm names and shapes

Names follow the published index files. A manifest is written only if its byte count equals the published `total_size`.
"""

import json
import math
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parent / "manifests"
BYTES = {"BF16": 2, "U8": 1}

GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                   "lm_head"],
        "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                     "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False},
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 201088,
}
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151936,
}
QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "initializer_range": 0.02, "intermediate_size": 25600, "max_position_embeddings": 40960,
    "max_window_layers": 64, "model_type": "qwen3", "num_attention_heads": 64, "num_hidden_layers": 64,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}
LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 128, "hidden_act": "silu", "hidden_size": 8192,
    "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.47.0.dev0", "use_cache": True, "vocab_size": 128256,
}
QWEN3_GENERATION = {
    "bos_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643], "pad_token_id": 151643,
    "temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0",
}

# model: (config, generation config, published total_size, what confirms it)
MODELS = {
    "openai/gpt-oss-20b": (
        GPT_OSS_20B,
        {"bos_token_id": 199998, "do_sample": True, "eos_token_id": [200002, 199999, 200012],
         "pad_token_id": 199999, "transformers_version": "4.55.0.dev0"},
        13761264768,
        {"config": "public copy of the published file", "generation_config": "public copy of the published file",
         "names": "public copy of the published index", "total_size": "published index",
         "shapes": "total_size; transformers' model for all but _blocks and _scales"}),
    "Qwen/Qwen3-30B-A3B": (
        QWEN3_30B, QWEN3_GENERATION, 61064245248,
        {"config": "public copy of the published file", "generation_config": "values that public code uses for this family; the file itself was not seen",
         "names": "excerpts of the published index; transformers' model", "total_size": "published index",
         "shapes": "total_size; transformers' model"}),
    "Qwen/Qwen3-32B": (
        QWEN3_32B, QWEN3_GENERATION, 65524246528,
        {"config": "public copy of the published file, but for num_hidden_layers, which total_size confirms",
         "generation_config": "values that public code uses for this family; the file itself was not seen",
         "names": "excerpts of the published index; transformers' model", "total_size": "published index",
         "shapes": "total_size; transformers' model"}),
    "meta-llama/Llama-3.3-70B-Instruct": (
        LLAMA_70B,
        {"bos_token_id": 128000, "do_sample": True, "eos_token_id": [128001, 128008, 128009], "temperature": 0.6,
         "top_p": 0.9, "transformers_version": "4.47.0.dev0"},
        141107412992,
        {"config": "public copies of the published file", "generation_config": "as a public copy of Llama 3.1's, but for transformers_version; the file itself was not seen",
         "names": "excerpts of the published index of Llama 3.1 70B; transformers' model",
         "total_size": "published index of Llama 3.1 70B, whose shapes are the same",
         "shapes": "total_size; transformers' model"}),
}


def attention(c):
    hidden, dim = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    rows = [(f"self_attn.{n}_proj.weight", [out, inner])
            for n, out, inner in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q))]
    if c["attention_bias"]:
        rows += [(f"self_attn.{n}_proj.bias", [out]) for n, out in (("q", q), ("k", kv), ("v", kv), ("o", hidden))]
    if c["model_type"].startswith("qwen3"):
        rows += [("self_attn.q_norm.weight", [dim]), ("self_attn.k_norm.weight", [dim])]
    if c["model_type"] == "gpt_oss":
        rows += [("self_attn.sinks", [c["num_attention_heads"]])]
    return rows


def swiglu(prefix, hidden, inter):
    return [(prefix + "gate_proj.weight", [inter, hidden]), (prefix + "up_proj.weight", [inter, hidden]),
            (prefix + "down_proj.weight", [hidden, inter])]


def mlp(c):
    hidden, inter = c["hidden_size"], c["intermediate_size"]
    if c["model_type"] == "gpt_oss":
        experts = c["num_local_experts"]
        rows = [("mlp.router.weight", [experts, hidden]), ("mlp.router.bias", [experts])]
        for name, out, inner in (("gate_up_proj", 2 * inter, hidden), ("down_proj", hidden, inter)):
            rows += [(f"mlp.experts.{name}_bias", [experts, out]),
                     (f"mlp.experts.{name}_blocks", [experts, out, inner // 32, 16]),
                     (f"mlp.experts.{name}_scales", [experts, out, inner // 32])]
        return rows
    if c["model_type"] == "qwen3_moe":
        return [("mlp.gate.weight", [c["num_experts"], hidden]),
                *swiglu("mlp.experts.{expert}.", hidden, c["moe_intermediate_size"])]
    return swiglu("mlp.", hidden, inter)


def tensors(c):
    hidden = c["hidden_size"]
    rows = [("model.embed_tokens.weight", [c["vocab_size"], hidden])]
    rows += [("model.layers.{layer}." + n, shape) for n, shape in (
        ("input_layernorm.weight", [hidden]), *attention(c), ("post_attention_layernorm.weight", [hidden]), *mlp(c))]
    rows += [("model.norm.weight", [hidden]), ("lm_head.weight", [c["vocab_size"], hidden])]
    return [{"name": n, "shape": shape, "dtype": "U8" if n.endswith(("_blocks", "_scales")) else "BF16"}
            for n, shape in rows]


def expanded(rows, layers, experts):
    for row in rows:
        for layer in range(layers if "{layer}" in row["name"] else 1):
            for expert in range(experts if "{expert}" in row["name"] else 1):
                yield row["name"].format(layer=layer, expert=expert), row["shape"], row["dtype"]


def confirm_with_transformers(model, config, all_tensors):
    fields = {k: v for k, v in config.items() if k not in ("quantization_config", "torch_dtype")}
    with torch.device("meta"):
        there = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields))
    theirs = {n: list(p.shape) for n, p in there.named_parameters() if not n.endswith(("_up_proj", "experts.down_proj"))}
    ours = {n: s for n, s, _ in all_tensors if not n.endswith(("_blocks", "_scales"))}
    if ours != theirs:
        raise SystemExit(f"{model}: {sorted(ours.keys() ^ theirs.keys())[:5]}")


def main():
    for model, (config, generation, total_size, confirmed) in MODELS.items():
        rows, layers = tensors(config), config["num_hidden_layers"]
        experts = config.get("num_experts", config.get("num_local_experts", 0))
        everything = list(expanded(rows, layers, experts))
        size = sum(math.prod(shape) * BYTES[dtype] for _, shape, dtype in everything)
        if size != total_size:
            raise SystemExit(f"{model}: {size} bytes, published {total_size}")
        confirm_with_transformers(model, config, everything)
        path = HERE / (model.replace("/", "--") + ".json")
        value = {"model": model, "confirmed_by": confirmed, "transformers": transformers.__version__,
                 "layers": layers, "experts": experts, "tensor_count": len(everything), "total_size": total_size,
                 "config": config, "generation_config": generation, "tensors": rows}
        path.write_text("{\n" + ",\n".join(
            f"{json.dumps(k)}: {json.dumps(v)}" if k != "tensors" else
            '"tensors": [\n' + ",\n".join(json.dumps(row) for row in v) + "\n]" for k, v in value.items()) + "\n}\n")
        json.loads(path.read_text())
        print(model, len(everything), size)


if __name__ == "__main__":
    main()
