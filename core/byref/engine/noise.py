"""Counter-based noise: a pure function of (seed, position, token). Knows integers; holds no generator and no state."""

from __future__ import annotations

from typing import Final

from torch import Tensor

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def stream(seed: int, position: int) -> int:
    """The 64-bit state of one choice, from which each token's noise follows."""
    return _mix(_mix(seed & MASK) + position * GOLDEN & MASK)


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    for shift, factor in MIX:
        x = (x ^ x >> shift) * factor & MASK
    return x ^ x >> 31


def uniform(state: int, tokens: Tensor) -> Tensor:
    """tokens [n] int64 -> [n] float64 in (0, 1), independent over (seed, position, token)."""
    x = tokens * _signed(GOLDEN) + _signed(state)
    for shift, factor in MIX:
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * _signed(factor)
    x = x ^ (x >> 31 & (1 << 33) - 1)
    return ((x >> 11 & (1 << 53) - 1).double() + 0.5) * 2.0**-53


def gumbel(seed: int, position: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise of each token, [n] float64: argmax(logits + noise) draws from softmax(logits)."""
    return uniform(stream(seed, position), tokens).log_().neg_().log_().neg_()
