"""Projections with weights in 8 bits, for a drafter. Knows weights; must not know what is projected."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from byref.contract.errors import ConfigError
from byref.contract.roles import Site
from byref.contract.specs import LinearSpec, Project


class Int8Linear:
    """Weights rounded to 8 bits per output row, inputs per call (torch's dynamic quantisation, FBGEMM on x86).

    On a CPU only. It reads a quarter of the bytes of fp32 weights, and half of those in bf16.
    """

    about = "int8 weights and inputs (FBGEMM)"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.float()
        scales = (weight.abs().amax(1) / 127).clamp_(min=torch.finfo(torch.float32).tiny)
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        with warnings.catch_warnings():
            # Quantised tensors are to leave torch, and its one fused kernel for small batches takes no other weight.
            warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None if bias is None else bias.float())
        self._apply = torch.ops.quantized.linear_dynamic

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y: Tensor = self._apply(x.float(), self._packed, reduce_range=True).to(x.dtype)
        return y if residual is None else y.add_(residual)


def answer_int8(spec: LinearSpec, site: Site) -> Project:
    """The projection in 8 bits.

    Raises:
        ConfigError: there is no kernel for it here.
    """
    if site.sizing.device.type != "cpu" or "fbgemm" not in torch.backends.quantized.supported_engines:
        raise ConfigError(
            f"int8 weights have a kernel on x86 CPUs only, and this engine runs on {site.sizing.device.type}",
            where="[plugins.spec_decoding.options] weights",
            hint='weights = "target" and fewer layers',
        )
    weight = site.parameters.load([part.name for part in spec.fused], (spec.outputs, spec.inputs))
    names = [part.name.removesuffix("weight") + "bias" for part in spec.fused]
    bias = site.parameters.load(names, (spec.outputs,)) if spec.bias else None
    return Int8Linear(weight, bias)
