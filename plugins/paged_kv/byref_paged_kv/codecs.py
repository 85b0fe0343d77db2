"""Eight-bit storage of keys and values, one scale per head and entry. Knows widths; nothing of pages or attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from byref.contract.calls import Codec
from byref.contract.errors import ConfigError
from byref.contract.specs import AttentionSpec, PoolSpec, Spec, of_kind

SCALE_BYTES = 2
"""A scale is a bfloat16: its range is float32's, and its rounding is undone by scaling with the rounded value."""


@dataclass(unsafe_hash=True)
class EightBit:
    """Stores an entry as one byte per value, then one scale per head: [values | scales] of uint8.

    Args:
        heads: widths of the heads of an entry, in order.
        values: type of the decoded values.
    """

    heads: tuple[int, ...]
    values: torch.dtype
    dtype: torch.dtype = torch.uint8
    stored: ClassVar[torch.dtype]
    most: ClassVar[float]
    """The largest number that `stored` has."""

    def width(self, width: int) -> int:
        """Bytes of an entry."""
        return width + SCALE_BYTES * len(self.heads)

    def encode(self, values: Tensor) -> Tensor:
        """values [n, width] -> [n, stored width] uint8."""
        scaled, scales = [], []
        for head in values.float().split(list(self.heads), -1):
            scale = (head.abs().amax(-1, keepdim=True) / self.most).clamp(min=1e-12).to(torch.bfloat16)
            scaled.append(self._store((head / scale.float()).clamp(-self.most, self.most)))
            scales.append(scale)
        return torch.cat((*scaled, torch.cat(scales, -1).view(torch.uint8)), -1)

    def decode(self, stored: Tensor) -> Tensor:
        """[n, stored width] uint8 -> values [n, width]."""
        width = sum(self.heads)
        scales = stored[:, width:].contiguous().view(torch.bfloat16).float()
        heads = stored[:, :width].contiguous().view(self.stored).float().split(list(self.heads), -1)
        return torch.cat([head * scales[:, i : i + 1] for i, head in enumerate(heads)], -1).to(self.values)

    def _store(self, scaled: Tensor) -> Tensor:
        return scaled.to(self.stored).view(torch.uint8)


class Int8(EightBit):
    """Whole numbers from -127 to 127."""

    stored: ClassVar[torch.dtype] = torch.int8
    most: ClassVar[float] = 127.0

    def _store(self, scaled: Tensor) -> Tensor:
        return scaled.round().to(torch.int8).view(torch.uint8)


class Fp8(EightBit):
    """Floating-point numbers of 4 exponent and 3 mantissa bits (e4m3), up to 448."""

    stored: ClassVar[torch.dtype] = torch.float8_e4m3fn
    most: ClassVar[float] = 448.0


CODECS: dict[str, type[EightBit]] = {"int8": Int8, "fp8": Fp8}


def quantise(specs: Sequence[Spec[Any]], dtype: Literal["int8", "fp8"]) -> list[Spec[Any]]:
    """Give the pool of every attention its codec; other pools stay as they are.

    Raises:
        ConfigError: another plugin has given one a codec already.
    """
    heads = {(spec.role, spec.pool_name): head_widths(spec) for spec in of_kind(specs, AttentionSpec)}

    def edit(spec: Spec[Any]) -> Spec[Any]:
        if not isinstance(spec, PoolSpec) or (spec.role, spec.name) not in heads:
            return spec
        if spec.codec is not None:
            raise ConfigError(
                f"the pool {spec.name!r} has a codec already, {type(spec.codec).__name__}",
                where="[plugins.paged_kv] dtype",
                hint="leave dtype out, or disable the plugin that set it",
            )
        codec: Codec = CODECS[dtype](heads[spec.role, spec.name], spec.dtype)
        return replace(spec, codec=codec)

    return [edit(spec) for spec in specs]


def head_widths(spec: AttentionSpec) -> tuple[int, ...]:
    """Parts of an entry that get a scale each: every head's key and value; of a latent entry its two parts."""
    if spec.form == "mla":
        return tuple(width for width in (spec.value_dim, spec.key_dim - spec.value_dim) if width)
    return (spec.key_dim,) * spec.kv_heads + (spec.value_dim,) * spec.kv_heads
