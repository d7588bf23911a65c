"""What the base's and the adapters' training share: the step, the schedule, the exact-match test."""

import math
import time

import numpy as np
import torch
import torch.nn.functional as F

import model as demo_model


class Step:
    """Forward, loss, backward, update. `model` may be a PEFT model."""

    def __init__(self, model, parameters, device, lr, weight_decay, betas):
        self.model, self.device, self.lr = model, device, lr
        self.half = device.type == "cuda"
        self.parameters = list(parameters)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, betas=betas,
                                           weight_decay=weight_decay, fused=self.half)
        self.router_outputs = []
        for name, module in model.named_modules():
            if name.endswith("mlp.router"):
                module.register_forward_hook(
                    lambda _, __, out: self.router_outputs.append((out[0], out[2])))

    def upload(self, array):
        tensor = torch.as_tensor(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.half else tensor

    def logits(self, ids):
        self.router_outputs.clear()
        ids = self.upload(ids)
        dtype = torch.bfloat16 if self.half else torch.float32
        masks = demo_model.training_masks(ids.shape[1], self.device, dtype)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
            return self.model(input_ids=ids, attention_mask=masks, use_cache=False).logits

    def balance_loss(self):
        """Switch Transformer's load balance loss, averaged over layers; 1 = even."""
        losses = []
        for logits, chosen in self.router_outputs:
            probs = logits.float().softmax(-1).mean(0)
            experts = torch.arange(logits.shape[-1], device=logits.device)
            share = (chosen.unsqueeze(-1) == experts).float().mean((0, 1))
            losses.append(logits.shape[-1] * (probs * share).sum())
        return torch.stack(losses).mean()

    def __call__(self, ids, targets, lr, balance=0.0):
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        logits = self.logits(ids)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), self.upload(targets).flatten(),
                               ignore_index=-100)
        total = loss + balance * self.balance_loss() if balance else loss
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.detach()


def learning_rate(peak, done, warmup=0.03):
    """Linear warm-up, then cosine to 5 %; `done` is the finished share of the run."""
    if done < warmup:
        return peak * (done + 1e-3) / (warmup + 1e-3)
    x = min(1.0, (done - warmup) / (1 - warmup))
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * x)))


@torch.no_grad()
def exact_match(step, examples, pad_id, batch_size=128):
    """Share of (ids, first supervised position) whose greedy answer is right token for token.

    Greedy decoding reproduces the answer exactly when every supervised token is the argmax under
    teacher forcing, so one forward tells.
    """
    right = 0
    for i in range(0, len(examples), batch_size):
        group = examples[i:i + batch_size]
        length = max(len(ids) for ids, _ in group)
        ids = np.full((len(group), length), pad_id, dtype=np.int64)
        for row, (doc, _) in enumerate(group):
            ids[row, :len(doc)] = doc
        best = step.logits(ids).argmax(-1).cpu().numpy()
        for row, (doc, start) in enumerate(group):
            right += bool((best[row, start - 1:len(doc) - 1] == doc[start:]).all())
    return right / len(examples)


class Clock:
    """Progress of a run that ends after `steps`, or after `seconds` if that comes first."""

    def __init__(self, steps, seconds):
        self.steps, self.seconds, self.start = steps, seconds, time.time()

    def elapsed(self):
        return time.time() - self.start

    def done(self, step):
        return max(step / self.steps, self.elapsed() / self.seconds)
