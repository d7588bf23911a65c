"""Writes small adapters that must be refused, each with expect.json saying what the refusal has to name.

    python make_hostile.py
"""

import json
import pickle
import shutil
import struct

import numpy
import torch
from safetensors.torch import save, save_file

import common
from make_merged import config_fields

Q = "base_model.model.model.layers.0.self_attn.q_proj"
O = "base_model.model.model.layers.0.self_attn.o_proj"
EXPERTS = "base_model.model.model.layers.0.mlp.experts"
MODEL = "gptoss-mxfp4"  # hidden 64, q 256, 4 layers, 8 experts


def tensor(*shape):
    values = numpy.random.default_rng(sum(shape)).normal(0, 0.1, shape).astype("float32")
    return torch.from_numpy(values).bfloat16()


def good():
    return {f"{Q}.lora_A.weight": tensor(2, 64), f"{Q}.lora_B.weight": tensor(256, 2)}


def fields(model=MODEL, **more):
    return config_fields(model, **{"r": 2, "target_modules": ["q_proj"], "peft_version": "0.18.1", **more})


def write(name, tensors, config, names, why, model=MODEL):
    """names: words that the refusal must carry (a tensor's or a field's name)."""
    folder = common.HERE / model / "hostile" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if isinstance(tensors, bytes):
        (folder / "adapter_model.safetensors").write_bytes(tensors)
    elif tensors is not None:
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    if isinstance(config, str):
        (folder / "adapter_config.json").write_text(config)
    elif config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    common.write_json(folder / "expect.json", {"model": model, "verdict": "refused", "names": names, "why": why})


def tensor_cases():
    t = good()
    write("unknown-projection", {**t, Q.replace("q_proj", "z_proj") + ".lora_A.weight": tensor(2, 64),
                                 Q.replace("q_proj", "z_proj") + ".lora_B.weight": tensor(64, 2)},
          fields(target_modules=["q_proj", "z_proj"]), ["z_proj"], "the model has no such projection")
    write("unknown-tensor", {**t, f"{Q}.lora_C.weight": tensor(2, 2)}, fields(), ["lora_C"], "neither A nor B")
    write("layer-out-of-range", {k.replace("layers.0", "layers.4"): v for k, v in t.items()}, fields(),
          ["layers.4"], "the model has layers 0 to 3")
    write("expert-out-of-range", {f"{EXPERTS}.8.down_proj.lora_A.weight": tensor(2, 64),
                                  f"{EXPERTS}.8.down_proj.lora_B.weight": tensor(64, 2)},
          fields(target_modules=["down_proj"]), ["experts.8"], "the model has experts 0 to 7")
    write("missing-lora-b", {k: v for k, v in t.items() if "lora_A" in k}, fields(), [f"{Q}.lora_B"],
          "an A without its B")
    write("missing-lora-a", {k: v for k, v in t.items() if "lora_B" in k}, fields(), [f"{Q}.lora_A"],
          "a B without its A")
    write("wrong-input-width", {**t, f"{Q}.lora_A.weight": tensor(2, 63)}, fields(),
          [f"{Q}.lora_A", "63", "64"], "A spans 63, the projection's input is 64")
    write("wrong-output-width", {**t, f"{Q}.lora_B.weight": tensor(255, 2)}, fields(),
          [f"{Q}.lora_B", "255", "256"], "B spans 255, the projection's output is 256")
    write("ranks-of-a-and-b-differ", {**t, f"{Q}.lora_B.weight": tensor(256, 3)}, fields(), [Q],
          "A has rank 2, B has rank 3")
    write("one-dimensional", {**t, f"{Q}.lora_A.weight": tensor(128)}, fields(), [f"{Q}.lora_A"],
          "A has one dimension")
    for word, value in (("nan", float("nan")), ("infinity", float("inf"))):
        bad = good()
        bad[f"{Q}.lora_B.weight"][17, 1] = value
        write(word, bad, fields(), [f"{Q}.lora_B"], f"one element is {word}")
    write("rank-differs-from-config", t, fields(r=8), [Q, "8", "2"], "config says r = 8, A has 2 rows")
    write("rank-differs-from-pattern", t, fields(rank_pattern={"q_proj": 4}), [Q, "4", "2"],
          "rank_pattern says 4, A has 2 rows")
    write("fused-rows-not-experts-times-rank", {f"{EXPERTS}.lora_A.weight": tensor(15, 64),
                                                f"{EXPERTS}.lora_B.weight": tensor(128, 15)},
          fields(target_modules=[], target_parameters=["mlp.experts.gate_up_proj"]), [EXPERTS, "15"],
          "15 rows are not 8 experts times a rank")
    write("fused-fits-no-parameter", {f"{EXPERTS}.lora_A.weight": tensor(16, 96),
                                      f"{EXPERTS}.lora_B.weight": tensor(160, 16)},
          fields(target_modules=[], target_parameters=["mlp.experts.gate_up_proj"]), [EXPERTS],
          "no expert parameter has sides 96 and 160")
    write("fused-and-per-expert-on-one-parameter",
          {f"{EXPERTS}.lora_A.weight": tensor(16, 64), f"{EXPERTS}.lora_B.weight": tensor(64, 16),
           f"{EXPERTS}.3.down_proj.lora_A.weight": tensor(2, 64),
           f"{EXPERTS}.3.down_proj.lora_B.weight": tensor(64, 2)},
          fields(target_modules=["down_proj"], target_parameters=["mlp.experts.down_proj"]), [EXPERTS],
          "down of expert 3 is given twice")
    write("integer-weights", {**t, f"{Q}.lora_A.weight": torch.ones(2, 64, dtype=torch.int8)}, fields(),
          [f"{Q}.lora_A", "I8"], "A is of an integer type")
    write("same-target-twice", {**t, f"{Q}.lora_A.default.weight": tensor(2, 64),
                                f"{Q}.lora_B.default.weight": tensor(256, 2)}, fields(), [Q],
          "one projection under two names")
    write("no-tensors", {}, fields(), [], "the file holds no tensor")


def ambiguous_cases():
    experts = "base_model.model.model.layers.{}.mlp.experts"
    for model, parameter, layer in (("qwen3moe-norm", "gate_up_proj", 0), ("qwen3moe-nonorm", "down_proj", 1)):
        config = fields(model, target_modules=[], target_parameters=[f"mlp.experts.{parameter}"])
        del config["peft_version"]
        key = experts.format(layer)
        write("ambiguous-square-no-version", {f"{key}.lora_A.weight": tensor(16, 64),
                                              f"{key}.lora_B.weight": tensor(64, 16)},
              config, [key], "both sides are 64 wide and no peft_version says which is the input", model)


def shared_cases():
    """All experts share A or B, or every expert's matrices are in one tensor."""
    gate, down = f"{EXPERTS}.gate_proj", f"{EXPERTS}.down_proj"
    config = fields(target_modules=["gate_proj", "down_proj"])
    shared_a = {f"{gate}.lora_A.weight": tensor(1, 2, 64), f"{gate}.lora_B.weight": tensor(8, 64, 2)}
    shared_b = {f"{down}.lora_A.weight": tensor(8, 2, 64), f"{down}.lora_B.weight": tensor(1, 64, 2)}
    only_gate = fields(target_modules=["gate_proj"])
    write("shared-wrong-count", {**shared_a, f"{gate}.lora_B.weight": tensor(7, 64, 2)}, only_gate,
          [f"{gate}.lora_B", "(8, 64, 2)", "(7, 64, 2)"], "B of 7 experts of 8")
    write("shared-rank-differs", {**shared_a, f"{gate}.lora_A.weight": tensor(1, 4, 64)}, only_gate,
          [f"{gate}.lora_A", "rank 2", "(1, 4, 64)"], "the shared A has rank 4, the config says 2")
    write("shared-and-single", {**shared_b, f"{EXPERTS}.3.down_proj.lora_B.weight": tensor(64, 2)},
          fields(target_modules=["down_proj"]), ["experts.3.down_proj.lora_B", f"{down}.lora_B"],
          "B of expert 3 is given twice")
    write("shared-and-single-pair", {**shared_b, f"{EXPERTS}.3.down_proj.lora_A.weight": tensor(2, 64),
                                     f"{EXPERTS}.3.down_proj.lora_B.weight": tensor(64, 2)},
          fields(target_modules=["down_proj"]), ["experts.3.down_proj.lora_A", f"{down}.lora_A"],
          "down of expert 3 is given twice")
    single = {f"{EXPERTS}.{e}.gate_proj.lora_B.weight": tensor(64, 2) for e in range(8) if e != 5}
    write("shared-one-expert-missing", {f"{gate}.lora_A.weight": tensor(1, 2, 64), **single}, only_gate,
          ["experts.5.gate_proj.lora_B", "missing"], "the other side lacks expert 5")
    write("shared-alone", {f"{gate}.lora_A.weight": tensor(1, 2, 64)}, only_gate,
          ["experts.0.gate_proj.lora_B", "missing"], "an A for all experts without any B")
    write("shared-two-names", {**shared_a, f"{EXPERTS}.w1.lora_A.weight": tensor(1, 2, 64)}, only_gate,
          ["gate_proj", "w1"], "gate_proj and w1 are one projection")
    write("shared-and-flat", {**shared_b, f"{EXPERTS}.lora_A.weight": tensor(16, 64),
                              f"{EXPERTS}.lora_B.weight": tensor(64, 16)},
          fields(target_modules=["down_proj"], target_parameters=["mlp.experts.down_proj"]),
          [f"{EXPERTS}.lora_A", f"{down}.lora_A"], "down is given stacked and in PEFT's flat form")
    write("shared-gate-up-of-interleaved-rows", {f"{EXPERTS}.gate_up_proj.lora_A.weight": tensor(1, 2, 64),
                                                 f"{EXPERTS}.gate_up_proj.lora_B.weight": tensor(8, 128, 2)},
          fields(target_modules=[], target_parameters=["mlp.experts.gate_up_proj"]),
          [f"{EXPERTS}.gate_up_proj", "interleave"], "the order of B's rows can't be told")
    write("shared-not-targeted", shared_a, fields(), [gate, "target"], "the config names q_proj alone")
    write("shared-three-dimensional-dense", {f"{Q}.lora_A.weight": tensor(1, 2, 64),
                                             f"{Q}.lora_B.weight": tensor(256, 2)}, fields(),
          [f"{Q}.lora_A", "(1, 2, 64)"], "q_proj has no experts to share")
    write("shared-flat-on-both-sides", {f"{EXPERTS}.lora_A.weight": tensor(2, 64),
                                        f"{EXPERTS}.lora_B.weight": tensor(128, 2)},
          fields(target_modules=[], target_parameters=["mlp.experts.gate_up_proj"]),
          [f"{EXPERTS}.lora_A", "(16, 64)"], "one pair for all experts looks like a wrong rank")


def config_cases():
    t = good()
    refused = {
        "bias": "all", "lora_bias": True, "modules_to_save": ["lm_head"], "fan_in_fan_out": True,
        "layer_replication": [[0, 2], [1, 3]], "trainable_token_indices": [1, 2],
        "alora_invocation_tokens": [5, 6], "peft_type": "IA3",
        "r": 0, "some_later_field": {"on": True}, "use_qalora": True,
    }
    for field, value in refused.items():
        write(f"config-{field.replace('_', '-')}", t, fields(**{field: value}), [field],
              f"{field} = {json.dumps(value)} changes the result and is not implemented")
    write("config-dora-on-experts",
          {f"{EXPERTS}.0.down_proj.lora_A.weight": tensor(2, 64),
           f"{EXPERTS}.0.down_proj.lora_B.weight": tensor(64, 2),
           f"{EXPERTS}.0.down_proj.lora_magnitude_vector": tensor(64)},
          fields(target_modules=["down_proj"], use_dora=True), ["use_dora"], "DoRA on experts is not supported")
    write("config-alpha-not-a-number", t, json.dumps(fields()).replace('"lora_alpha": 8', '"lora_alpha": NaN'), [],
          "NaN is not JSON")
    write("config-alpha-a-string", t, fields(lora_alpha="8"), ["lora_alpha"], "lora_alpha is a string")
    write("config-missing", t, None, ["adapter_config.json"], "no adapter_config.json")
    write("config-not-json", t, '{"r": 2,', ["adapter_config.json"], "adapter_config.json ends early")
    write("config-no-rank", t, {k: v for k, v in fields().items() if k != "r"}, ["r"], "no rank")


def with_header(header, data):
    return struct.pack("<Q", len(header)) + header + data


def file_cases():
    whole = save(good())
    write("file-truncated", whole[:-100], fields(), ["adapter_model.safetensors"], "the data ends early")
    write("file-trailing-bytes", whole + bytes(10), fields(), ["adapter_model.safetensors"],
          "bytes after the last tensor")
    write("file-header-longer-than-file", struct.pack("<Q", 1 << 40) + b"{}", fields(),
          ["adapter_model.safetensors"], "the header claims 2^40 bytes")
    write("file-header-not-json", with_header(b'{"a": ', b""), fields(), ["adapter_model.safetensors"],
          "the header is not JSON")
    write("file-empty", b"", fields(), ["adapter_model.safetensors"], "an empty file")
    entry = {"dtype": "BF16", "shape": [2, 64], "data_offsets": [0, 256]}
    overlap = json.dumps({f"{Q}.lora_A.weight": entry,
                          f"{Q}.lora_B.weight": {"dtype": "BF16", "shape": [256, 2], "data_offsets": [0, 1024]}})
    write("file-overlapping-tensors", with_header(overlap.encode(), bytes(1024)), fields(),
          ["adapter_model.safetensors"], "two tensors share bytes")
    wrong = json.dumps({f"{Q}.lora_A.weight": {**entry, "data_offsets": [0, 200]},
                        f"{Q}.lora_B.weight": {"dtype": "BF16", "shape": [256, 2], "data_offsets": [200, 1224]}})
    write("file-size-differs-from-shape", with_header(wrong.encode(), bytes(1224)), fields(), [f"{Q}.lora_A"],
          "shape and byte range of A disagree")
    huge = json.dumps({f"{Q}.lora_A.weight": {"dtype": "BF16", "shape": [1 << 33, 1 << 33], "data_offsets": [0, 0]}})
    write("file-shape-overflows", with_header(huge.encode(), b""), fields(), [f"{Q}.lora_A"],
          "the element count overflows 64 bits")
    write("file-missing", None, fields(), ["adapter_model.safetensors"], "no weights")
    write("pickle-only", None, fields(), ["adapter_model.bin"], "pickled weights are never read")
    (common.HERE / MODEL / "hostile" / "pickle-only" / "adapter_model.bin").write_bytes(pickle.dumps({}))


if __name__ == "__main__":
    tensor_cases()
    ambiguous_cases()
    shared_cases()
    config_cases()
    file_cases()
    for path in sorted(common.HERE.glob("*/hostile/*")):
        print(path.relative_to(common.HERE))
