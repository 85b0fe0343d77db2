"""Lookups, norms and row narrowing in plain torch. Knows single specs; composes nothing."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from byref.contract.calls import Apply, Lend, Lookup, Narrow
from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH, Site
from byref.contract.specs import EmbedSpec, LayerNormSpec, NormSpec, RowSpec, TensorSpec


def answer_embed(spec: EmbedSpec, site: Site) -> Lookup:
    """Rows of the table, scaled where asked."""
    table = site.parameters.load([f"{spec.name}.weight"], (spec.rows, spec.width))
    if spec.scale != 1.0:
        return _scaled_embed(table, spec.scale)

    def embed(ids: Tensor) -> Tensor:
        return functional.embedding(ids, table)

    return embed


def _scaled_embed(table: Tensor, scale: float) -> Lookup:
    factor = torch.tensor(scale, dtype=table.dtype, device=table.device)

    def embed(ids: Tensor) -> Tensor:
        return functional.embedding(ids, table).mul_(factor)

    return embed


def answer_norm(spec: NormSpec, site: Site) -> Apply:
    """RMSNorm; statistics in fp32 whatever the dtype."""
    weight = site.parameters.load([f"{spec.name}.weight"], (spec.width,))
    if spec.offset:
        weight = weight + spec.offset
    return (_norm_cpu if weight.device.type == "cpu" else _norm)(weight, spec.eps)


def _norm(weight: Tensor, eps: float) -> Apply:
    shape = weight.shape

    def norm(x: Tensor) -> Tensor:
        return functional.rms_norm(x, shape, weight, eps)

    return norm


def _norm_cpu(weight: Tensor, eps: float) -> Apply:
    """x w sqrt(n) / hypot(|x|, sqrt(n eps)): five operators, where a CPU's rms_norm runs ten."""
    width, dtype = weight.numel(), weight.dtype
    scaled, root = weight.float() * width**0.5, torch.tensor((width * eps) ** 0.5)

    def norm(x: Tensor) -> Tensor:
        x = x.float()
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return (x * scaled).div_(torch.hypot(length, root)).to(dtype)  # type: ignore[no-any-return]

    return norm


def answer_rows(spec: RowSpec, site: Site) -> Narrow:
    """The rows that the windows want, in their order."""

    def narrow(hidden: Tensor, ctx: ForwardContext) -> Tensor:
        if ctx.logit_rows == ctx.rows:
            return hidden
        return hidden.index_select(0, ctx.state(BATCH).wanted(ctx))

    return narrow


def answer_layer_norm(spec: LayerNormSpec, site: Site) -> Apply:
    """LayerNorm in fp32 whatever the dtype."""
    shape = (spec.width,)
    weight, bias = (site.parameters.load([f"{spec.name}.{part}"], shape, torch.float32) for part in ("weight", "bias"))

    def norm(x: Tensor) -> Tensor:
        return functional.layer_norm(x.float(), shape, weight, bias, spec.eps).to(x.dtype)

    return norm


def answer_tensor(spec: TensorSpec, site: Site) -> Lend:
    """The tensor, read once."""
    tensor = site.parameters.load([spec.name], spec.shape, spec.dtype)

    def lend() -> Tensor:
        return tensor

    return lend
