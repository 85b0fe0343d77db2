"""The loop that every part is trained by: AdamW, warm-up and cosine, bf16 products. Knows no model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from train.data import Text

WARM_UP = 0.05
"""Share of the steps in which the rate rises."""


@dataclass(frozen=True)
class Stage:
    """How long and on what a part learns: steps, and the windows of each."""

    steps: int
    rows: int
    length: int


def rates(steps: int, top: float) -> Iterator[float]:
    """The learning rate of each step: a linear rise, then half a cosine down to a twentieth."""
    rise = max(1, round(steps * WARM_UP))
    for step in range(steps):
        fall = 0.5 + 0.5 * math.cos(math.pi * max(0, step - rise) / max(1, steps - rise))
        yield top * min(1.0, (step + 1) / rise) * (0.05 + 0.95 * fall)


def optimise(
    parameters: Iterable[nn.Parameter],
    text: Text,
    seed: int,
    stage: Stage,
    loss: Callable[[Tensor], Tensor],
    rate: float,
    name: str,
    decay: float = 0.05,
) -> float:
    """Minimise `loss(tokens [rows, length])` over a stage; return its mean over the last tenth of the steps."""
    steps, batches = stage.steps, text.batches(seed, stage.steps, stage.rows, stage.length)
    free = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in free if parameter.dim() > 1], "weight_decay": decay},
        {"params": [parameter for parameter in free if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    seen: list[float] = []
    start = time.perf_counter()
    for step, (batch, lr) in enumerate(zip(batches, rates(steps, rate), strict=True)):
        for group in optimiser.param_groups:
            group["lr"] = lr
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(batch)
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(free, 1.0)
        optimiser.step()
        seen.append(value.item())
        if step % 50 == 0 or step == steps - 1:
            recent = sum(seen[-50:]) / len(seen[-50:])
            print(f"{name} {step}/{steps} loss {recent:.4f} {time.perf_counter() - start:.0f}s", flush=True)
    last = seen[-max(1, steps // 10) :]
    return sum(last) / max(1, len(last))
