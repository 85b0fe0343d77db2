"""Projections with weights in 8 or 4 bits, for a drafter. Knows weights; must not know what is projected.

Inputs stay as they are. Rounding them too would be faster still, and took acceptance on SmolLM2 from 0.97 to 0.72: a
few of its hidden elements are far larger than the rest.
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
ROWS: Final = 16
"""torch packs so many output rows of 4 bits together."""


class _Weight(Protocol):
    def __init__(self, weight: Tensor) -> None: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class Int8Weight:
    """Rounded to 8 bits, one scale per output row."""

    about: ClassVar[str] = "weights in 8 bits"

    def __init__(self, weight: Tensor) -> None:
        scales = (weight.float().abs().amax(1) / 127).clamp_(min=torch.finfo(torch.float32).tiny)
        self._scales = scales.to(weight.dtype)
        self._rounded = (weight.float() / scales[:, None]).round_().to(torch.int8)

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, self._rounded, self._scales)


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
        self._scales = torch.stack((scales.t(), (least + 8 * scales).t()), -1).to(weight.dtype).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._packed, GROUP, self._scales)
        return y[:, : self._outputs]


WEIGHTS: Final[Mapping[str, type[_Weight]]] = {"int8": Int8Weight, "int4": Int4Weight}


def answer_linear(bits: str, spec: LinearSpec, site: Site) -> Project:
    """The projection with rounded weights. That to the vocabulary has 8 bits in any case: its errors choose tokens.

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

    def project(x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = weight(x)
        y = y if bias is None else y + bias
        return y if residual is None else y.add_(residual)

    return project
