"""The fast training forward against transformers' eager one, and the MXFP4 round trip."""

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import ParamWrapper
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import model as demo_model
import per_expert
import train_adapter
import training

torch.manual_seed(0)
eager = demo_model.build().eval()
with torch.no_grad():
    for p in eager.parameters():
        p.add_(0.05 * torch.randn_like(p))
dense = demo_model.build_for_training().eval()
dense.load_state_dict(eager.state_dict())
ids = torch.randint(0, 2048, (2, 200))
masks = demo_model.training_masks(200, ids.device, torch.float32)


def compare(what, got, want):
    error = ((got - want).norm() / want.norm()).item()
    print(f"{what}: relative error {error:.2e}")
    assert error < 1e-5, what


with torch.no_grad():
    want = eager(input_ids=ids).logits
    compare("base", dense(input_ids=ids, attention_mask=masks).logits, want)
    recipe = LoraConfig(**train_adapter.RECIPES["reply"])
    eager, dense = get_peft_model(eager, recipe), get_peft_model(dense, recipe)
    for name, p in eager.named_parameters():
        if "lora_" in name:
            p.copy_(0.05 * torch.randn_like(p))
    dense.load_state_dict(eager.state_dict())
    adapted = eager(input_ids=ids).logits
    assert (adapted - want).norm() / want.norm() > 1e-2
    ParamWrapper._activate_lora = train_adapter.hand_over_weight
    compare("adapter", dense(input_ids=ids, attention_mask=masks).logits, adapted)

lora = {n.replace(".default", ""): p.detach() for n, p in eager.named_parameters() if "lora_" in n}
back = per_expert.fuse(per_expert.split(lora, 8), 8)
swapped = any(lora[n].shape != back[n].shape for n in lora)
assert set(back) == set(lora)
print("gate_up at the outer level" if swapped else "gate_up at the inner level")
if not swapped:
    assert all(torch.equal(lora[n], back[n]) for n in lora)

weight = torch.randn(3, 64, 96)
blocks, scales = demo_model.quantize_mxfp4(weight)
mine = demo_model.dequantize_mxfp4(blocks, scales)
theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
assert torch.equal(mine, theirs)
again = demo_model.quantize_mxfp4(mine)
assert torch.equal(demo_model.dequantize_mxfp4(*again), mine)
print("MXFP4 ok, relative error", ((mine - weight).norm() / weight.norm()).item())
