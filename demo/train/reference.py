"""Reading the demo's committed files into float32 transformers + PEFT models ("eager" code)."""

import json
import tempfile
from pathlib import Path

from peft import PeftModel
from safetensors.torch import load_file, save_file

import model as demo_model
import per_expert

CLOSE_GAP = 1e-3


def load_reference(demo, adapter=None):
    """The base (adapter None) or base + adapter, float32, not merged."""
    demo = Path(demo)
    net = demo_model.load_model(demo / "model" / "model.safetensors", demo_model.build()).eval()
    if adapter is None:
        return net
    folder = demo / "adapters" / adapter
    tensors = load_file(folder / "adapter_model.safetensors")
    with tempfile.TemporaryDirectory() as tmp:
        config = json.loads((folder / "adapter_config.json").read_text())
        if any(per_expert.SINGLE.match(name) for name in tensors):
            tensors = per_expert.fuse(tensors, demo_model.CONFIG["num_local_experts"])
            config = per_expert.fused_config(folder / "adapter_config.json")
        save_file({k: v.float().contiguous() for k, v in tensors.items()},
                  Path(tmp) / "adapter_model.safetensors", {"format": "pt"})
        (Path(tmp) / "adapter_config.json").write_text(json.dumps(config))
        return PeftModel.from_pretrained(net, tmp).eval()
