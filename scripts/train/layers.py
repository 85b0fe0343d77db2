"""Parts that the heads and the DeepSeek models share, in plain torch. Knows no names of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

HIDDEN = float("-inf")


class Norm(nn.Module):
    """RMS norm, computed and returned in fp32 whatever the products' dtype is."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Mlp(nn.Module):
    """The gated feed-forward block of all these models: down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


def angles(positions: Tensor, width: int, theta: float) -> Tensor:
    """positions [...] -> rotary angles [..., width // 2] in fp32."""
    return positions[..., None].float() * theta ** (-torch.arange(0, width, 2).float() / width)


def rotate_halves(x: Tensor, angle: Tensor) -> Tensor:
    """Rotary embedding of x [..., width] whose pairs are (i, i + width / 2)."""
    first, second = x.chunk(2, dim=-1)
    return _rotated(first, second, angle).to(x.dtype)


def rotate_pairs(x: Tensor, angle: Tensor) -> Tensor:
    """Rotary embedding of x [..., width] whose pairs are neighbours; the result has its halves apart."""
    return _rotated(x[..., 0::2], x[..., 1::2], angle).to(x.dtype)


def _rotated(first: Tensor, second: Tensor, angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass
class Chain:
    """Keys and values of an unrolled head: of every row at step 0, then of the row itself at each further step.

    Row t at step s stands for what a drafter computes s tokens after the last row the target has run, which is row t:
    it sees the step-0 keys of rows up to t, and its own keys of steps 1 to s.
    """

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    index_keys: list[Tensor] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps that have already left their keys."""
        return len(self.keys)


def chained_scores(query: Tensor, keys: list[Tensor]) -> Tensor:
    """query, keys [..., rows, width] -> products [..., rows, rows + steps - 1], -inf where a row sees no key."""
    length = query.shape[-2]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (query @ keys[0].transpose(-1, -2)).float().masked_fill(later, HIDDEN)
    own = [(query * key).sum(-1, keepdim=True).float() for key in keys[1:]]
    return torch.cat([scores, *own], dim=-1) if own else scores


def chained_values(weights: Tensor, values: list[Tensor]) -> Tensor:
    """weights [..., rows, rows + steps - 1] over values [..., rows, width] -> [..., rows, width]."""
    length = weights.shape[-2]
    mixed = weights[..., :length].to(values[0].dtype) @ values[0]
    for i, value in enumerate(values[1:]):
        mixed = mixed + weights[..., length + i, None].to(value.dtype) * value
    return mixed
