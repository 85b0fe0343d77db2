"""Index keys in fp8, and the rotation before. Knows vectors; nothing of requests or layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 128
"""Elements of one scale."""
MOST = 448.0
"""The largest number of fp8 (e4m3)."""


def hadamard(x: Tensor) -> Tensor:
    """x [..., dim] times the Hadamard matrix, scaled to keep lengths; dim is a power of two.

    Orthogonal: products of two vectors stay as they are if both are rotated, and mean nothing if one is.
    """
    dim = x.shape[-1]
    if dim & (dim - 1):
        raise ValueError(f"a Hadamard matrix of {dim} elements: a power of two is needed")
    y, half = x, 1
    while half < dim:
        pair = y.unflatten(-1, (-1, 2, half))
        a, b = pair[..., 0, :], pair[..., 1, :]
        y = torch.stack((a + b, a - b), -2).flatten(-3)
        half *= 2
    rotated: Tensor = y * dim**-0.5
    return rotated


def round_fp8(x: Tensor) -> Tensor:
    """x [..., dim] as fp8 with a power of two as the scale of every 128 elements keeps it."""
    stored = Fp8Keys(x.dtype)
    return stored.decode(stored.encode(x.flatten(0, -2))).view_as(x)


@dataclass(unsafe_hash=True)
class Fp8Keys:
    """Stores [values e4m3 | scales], one byte each: a scale is a power of two, kept as its exponent plus 127 (e8m0)."""

    values: torch.dtype
    dtype: torch.dtype = torch.uint8

    def width(self, width: int) -> int:
        """Bytes of one key."""
        return width + -(-width // GROUP)

    def encode(self, values: Tensor) -> Tensor:
        """values [n, width] -> [n, stored width] uint8."""
        parts, scales = [], []
        for part in values.float().split(GROUP, -1):
            largest = part.abs().amax(-1, keepdim=True).clamp(min=1e-4)
            exponent = (largest / MOST).log2().ceil()
            scaled = (part * torch.exp2(-exponent)).clamp(-MOST, MOST)
            parts.append(scaled.to(torch.float8_e4m3fn).view(torch.uint8))
            scales.append((exponent + 127).to(torch.uint8))
        return torch.cat((*parts, *scales), -1)

    def decode(self, stored: Tensor) -> Tensor:
        """[n, stored width] uint8 -> values [n, width]."""
        count = -(-stored.shape[-1] // (GROUP + 1))
        width = stored.shape[-1] - count
        values = stored[:, :width].contiguous().view(torch.float8_e4m3fn).float()
        scales = torch.exp2(stored[:, width:].float() - 127)
        parts = values.split(GROUP, -1)
        return torch.cat([part * scales[:, i : i + 1] for i, part in enumerate(parts)], -1).to(self.values)
