"""The demo's GPT-OSS model: configuration, MXFP4 files, and a fast forward for training.

Training runs transformers' own GptOssForCausalLM with two replaced parts: attention and experts
written densely (all experts for all tokens, weighted by the router). Reference outputs use
transformers' own "eager" code for both.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# As written to config.json, with the key names that openai/gpt-oss-20b uses on disk.
CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "experts_per_token": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initial_context_length": 512,
    "initializer_range": 0.04,
    "intermediate_size": 256,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "max_position_embeddings": 4096,
    "model_type": "gpt_oss",
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.01,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 2048,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head"],
        "quant_method": "mxfp4",
    },
}

EXPERT_PARAMETERS = ("gate_up_proj", "down_proj")
FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4_MIDPOINTS = (FP4_VALUES[1:] + FP4_VALUES[:-1]) / 2
MXFP4_BLOCK = 32


def write_config(folder, eos_ids, pad_id):
    config = CONFIG | {"eos_token_id": eos_ids[0], "pad_token_id": pad_id}
    folder = Path(folder)
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(
        {"do_sample": False, "eos_token_id": eos_ids, "max_new_tokens": 192,
         "pad_token_id": pad_id}, indent=2) + "\n")


def build(experts="eager", attention="eager"):
    config = {k: v for k, v in CONFIG.items() if k not in ("quantization_config", "torch_dtype")}
    model = GptOssForCausalLM(GptOssConfig(**config))
    model.config._attn_implementation = attention
    model.config._experts_implementation = experts
    for layer in model.model.layers:
        layer.mlp.experts.config._experts_implementation = experts
    return model.float()


def dense_attention(module, query, key, value, attention_mask, scaling, s_aux, **kwargs):
    """Eager attention with one sink column; query (B, heads, S, d), mask (1, 1, S, S) additive."""
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(2, 3)) * scaling + attention_mask
    sinks = s_aux.to(scores.dtype).view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
    probs = F.softmax(torch.cat([scores, sinks], -1), dim=-1, dtype=torch.float32)
    out = probs[..., :-1].to(value.dtype) @ value
    return out.transpose(1, 2).contiguous(), None


def effective(module, name):
    """The parameter, or what training put in its place for this forward."""
    return module.__dict__.get("replaced", {}).get(name, getattr(module, name))


def dense_experts(self, hidden_states, top_k_index, top_k_weights):
    """hidden_states (T, H) -> (T, H), every expert computed, the router's weights (0 for most)."""
    gate_up_proj, down_proj = (effective(self, name) for name in EXPERT_PARAMETERS)
    num_experts, hidden, double = gate_up_proj.shape
    weights = torch.zeros(hidden_states.shape[0], num_experts, device=hidden_states.device,
                          dtype=top_k_weights.dtype).scatter(1, top_k_index, top_k_weights)
    gate_up = hidden_states @ gate_up_proj.transpose(0, 1).reshape(hidden, num_experts * double)
    gate_up = gate_up.view(-1, num_experts, double) + self.gate_up_proj_bias.to(gate_up.dtype)
    act = self._apply_gate(gate_up) * weights.unsqueeze(-1).to(gate_up.dtype)
    out = act.flatten(1) @ down_proj.reshape(-1, hidden)
    return (out + weights.to(out.dtype) @ self.down_proj_bias.to(out.dtype)).to(hidden_states.dtype)


ALL_ATTENTION_FUNCTIONS.register("medley_dense", dense_attention)
ALL_EXPERTS_FUNCTIONS.register("medley_dense", dense_experts)


def build_for_training():
    return build(experts="medley_dense", attention="medley_dense")


def training_masks(length, device, dtype):
    """Causal masks of transformers' two layer types, additive, (1, 1, S, S)."""
    i = torch.arange(length, device=device)
    distance = i[:, None] - i[None, :]
    full = distance >= 0
    masks = {"full_attention": full,
             "sliding_attention": full & (distance < CONFIG["sliding_window"])}
    return {name: torch.zeros(1, 1, length, length, device=device, dtype=dtype).masked_fill(
        ~allowed, torch.finfo(dtype).min) for name, allowed in masks.items()}


def quantize_mxfp4(weight):
    """weight (..., in) -> blocks (..., in/32, 16) uint8, scales (..., in/32) uint8.

    OCP MX: 32 FP4 (E2M1) values share one E8M0 scale; low nibble first. Of the two exponents that
    can hold the block's maximum (clipped or not), the one with the smaller squared error is used.
    """
    block = weight.float().contiguous().unflatten(-1, (-1, MXFP4_BLOCK))
    peak = block.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    low = torch.floor(torch.log2(peak)) - 2
    best = None
    for exponent in (low, low + 1):
        scaled = block / torch.exp2(exponent)
        code = torch.bucketize(scaled.abs(), FP4_MIDPOINTS.to(weight.device))
        value = FP4_VALUES.to(weight.device)[code] * torch.exp2(exponent)
        error = (value - block.abs()).square().sum(-1, keepdim=True)
        code = code + 8 * (scaled < 0)
        if best is None:
            best = (error, code, exponent)
        else:
            better = error < best[0]
            best = (torch.where(better, error, best[0]), torch.where(better, code, best[1]),
                    torch.where(better, exponent, best[2]))
    _, code, exponent = best
    blocks = (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)
    return blocks, (exponent.squeeze(-1) + 127).to(torch.uint8)


def dequantize_mxfp4(blocks, scales):
    """The inverse: float32 (..., in)."""
    if (scales == 255).any():
        raise ValueError("an E8M0 scale is 255 (NaN)")
    signed = torch.cat([FP4_VALUES, -FP4_VALUES]).to(blocks.device)
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    return (signed[codes] * torch.exp2(scales.float() - 127).unsqueeze(-1)).flatten(-2)


def round_trip(weight):
    """weight (E, in, out) as the MXFP4 file would give it back (blocks run along `in`)."""
    return dequantize_mxfp4(*quantize_mxfp4(weight.transpose(1, 2))).transpose(1, 2)


def is_expert_weight(name):
    return name.endswith(tuple("mlp.experts." + p for p in EXPERT_PARAMETERS))


def save_model(model, path):
    tensors = {}
    for name, value in model.state_dict().items():
        value = value.detach().cpu()
        if is_expert_weight(name):
            blocks, scales = quantize_mxfp4(value.transpose(1, 2).contiguous())
            tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
        else:
            tensors[name] = value.to(torch.bfloat16)
    save_file({k: v.contiguous() for k, v in tensors.items()}, str(path), {"format": "pt"})


def load_model(path, model):
    """Fills `model` (float32) with exactly what the file says."""
    tensors = load_file(str(path))
    state = {}
    for name, value in tensors.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            weight = dequantize_mxfp4(value, tensors[stem + "_scales"])
            state[stem] = weight.transpose(1, 2).contiguous()
        elif not name.endswith("_scales"):
            state[name] = value.float()
    model.load_state_dict(state, strict=True)
    return model
