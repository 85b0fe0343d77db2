"""Projections with weights in 8 or 4 bits, for a drafter. Knows weights; must not know what is projected.

Inputs are rounded to bf16 and no further: torch's fast kernels take that alone, those in fp32 are 20 times as slow.
Inputs in 8 bits would be faster still, and took acceptance on SmolLM2 from 0.97 to 0.72: a few of its hidden elements
are far larger than the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from byref.contract.calls import Project
from byref.contract.errors import ConfigError
from byref.contract.roles import Site
from byref.contract.specs import LinearSpec

GROUP: Final = 32
"""Inputs that share a scale and an offset in 4 bits."""
VECTOR: Final = 32
"""Inputs that a kernel of 8 bits takes at once, or a multiple of it."""
ROWS: Final = 16
"""torch packs so many output rows of 4 bits together."""
FEW: Final = 8
"""With more rows than these, reading weights is not what takes the time, and the target's own projection is faster."""


class _Weight(Protocol):
    """A weight [outputs, inputs], rounded; called with [rows, inputs] bf16 it gives [rows, outputs] bf16."""

    about: ClassVar[str]

    def __init__(self, weight: Tensor) -> None: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class Int8Weight:
    """Rounded to 8 bits, one scale per output row."""

    about: ClassVar[str] = "weights in 8 bits"

    def __init__(self, weight: Tensor) -> None:
        scales = (weight.float().abs().amax(1) / 127).clamp_(min=torch.finfo(torch.float32).tiny)
        self._scales = scales.bfloat16()
        # torch's kernel reads beyond the end of rows whose length is no multiple of its vectors'.
        self._pad = (0, -weight.shape[1] % VECTOR)
        self._rounded = functional.pad((weight.float() / scales[:, None]).round_().to(torch.int8), self._pad)

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(
            functional.pad(x, self._pad) if self._pad[1] else x, self._rounded, self._scales
        )


class Int4Weight:
    """Rounded to 4 bits between the least and the greatest weight of each group of `GROUP` inputs."""

    about: ClassVar[str] = "weights in 4 bits"

    def __init__(self, weight: Tensor) -> None:
        self._outputs, inputs = weight.shape
        if inputs % GROUP:
            raise ConfigError(
                f"4 bits want a number of inputs that {GROUP} divides, and a projection has {inputs}",
                where="[plugins.spec_decoding.options] weights",
                hint='weights = "int8"',
            )
        groups = functional.pad(weight.float(), (0, 0, 0, -self._outputs % ROWS)).unflatten(1, (-1, GROUP))
        least, greatest = groups.amin(2), groups.amax(2)
        scales = ((greatest - least) / 15).clamp_(min=torch.finfo(torch.float32).tiny)
        codes = ((groups - least[..., None]) / scales[..., None]).round_().clamp_(0, 15).to(torch.int32)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.flatten(1), 1)
        # A weight is (code - 8) * scale + middle.
        self._scales = torch.stack((scales.t(), (least + 8 * scales).t()), -1).bfloat16().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._packed, GROUP, self._scales)
        return y[:, : self._outputs]


WEIGHTS: Final[Mapping[str, type[_Weight]]] = {"int8": Int8Weight, "int4": Int4Weight}


class RoundedLinear:
    """A projection of few rows by rounded weights, of many by the target's own where that is known.

    Args:
        weight: the rounded one.
        bias: [outputs], if any.
        own: the target's projection.
    """

    def __init__(self, weight: _Weight, bias: Tensor | None, own: Project | None) -> None:
        self._weight, self._bias, self._own = weight, bias, own
        self.about = weight.about
        self.capturable = getattr(own, "capturable", True)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._own is not None and len(x) > FEW:
            return self._own(x, residual)
        y = self._weight(x.bfloat16()).to(x.dtype)
        y = y if self._bias is None else y + self._bias
        return y if residual is None else y.add_(residual)


def answer_linear(bits: str, spec: LinearSpec, site: Site, own: Project | None) -> Project:
    """The projection with rounded weights. That to the vocabulary has 8 bits in any case: its errors choose tokens.

    Args:
        bits: a key of `WEIGHTS`.
        spec: what is projected.
        site: where.
        own: the target's answer to the same.

    Raises:
        ConfigError: there is no kernel for it here.
    """
    if site.sizing.device.type != "cpu":
        raise ConfigError(
            f"rounded weights have kernels on a CPU only, and this engine runs on {site.sizing.device.type}",
            where="[plugins.spec_decoding.options] weights",
            hint='weights = "target" with some layers left out',
        )
    weight = WEIGHTS["int8" if spec.narrow else bits](
        site.parameters.load([part.name for part in spec.fused], (spec.outputs, spec.inputs))
    )
    names = [part.name.removesuffix("weight") + "bias" for part in spec.fused]
    bias = site.parameters.load(names, (spec.outputs,)) if spec.bias else None
    return RoundedLinear(weight, bias, own)
