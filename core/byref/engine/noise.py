"""Counter-based noise: a pure function of (seed, position, token). Knows integers; holds no generator and no state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15
CHOICES: Final = 0x6A09E667F3BCC909
"""Sets the seeds of choices apart from the noise of positions."""
MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def stream(seed: int, position: int) -> int:
    """The 64-bit state of one choice, from which each token's noise follows."""
    return _mix(_mix(seed & MASK) + position * GOLDEN & MASK)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of one of several choices of a prompt; that of choice 0 is the request's own."""
    return _signed(stream(seed ^ CHOICES, choice)) if choice else seed


def _mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    for shift, factor in MIX:
        x = (x ^ x >> shift) * factor & MASK
    return x ^ x >> 31


def gumbel(states: Sequence[int], tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, [len(states), n] float32, of tokens [n] int64: argmax(logits + noise) draws from
    softmax(logits). Independent over (seed, position, token), where `stream` gave the states.
    """
    if tokens.is_cpu:  # numpy's integers and logarithms are three times as fast there
        return torch.from_numpy(_gumbel(np, _bits_numpy(states, tokens.numpy())))
    noise: Tensor = _gumbel(torch, _bits_torch(states, tokens))
    return noise


def _bits_numpy(states: Sequence[int], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """[rows, n]: 63 random bits of each token. As `_mix`; its last step would only stir bits that get rounded away."""
    x = tokens.view(np.uint64) * np.uint64(GOLDEN) + np.array([[state] for state in states], dtype=np.uint64)
    for shift, factor in MIX:
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x >>= np.uint64(1)
    return x.view(np.int64)


def _bits_torch(states: Sequence[int], tokens: Tensor) -> Tensor:
    """The same in signed integers, which is all that torch computes with."""
    x = tokens * _signed(GOLDEN) + torch.tensor([[_signed(state)] for state in states], device=tokens.device)
    for shift, factor in MIX:
        x ^= (x >> shift) & (MASK >> shift)
        x *= _signed(factor)
    return (x >> 1) & (MASK >> 1)


def _gumbel(xp: Any, bits: Any) -> Any:
    """-log(Exp) by numpy or torch (`xp`). Winners have small exponentials, which keep full precision when made from
    small uniforms."""
    x = xp.asarray(bits, dtype=xp.float32)
    x += 0.5
    x *= -(2.0**-63)
    xp.clip(x, 2.0**-24 - 1, None, out=x)  # rounding may have made it -1
    xp.log1p(x, out=x)
    xp.negative(x, out=x)
    xp.log(x, out=x)
    return xp.negative(x, out=x)
