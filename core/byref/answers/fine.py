"""Lookups, norms and row narrowing in plain torch. Knows single specs; composes nothing."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH, Site
from byref.contract.specs import Apply, EmbedSpec, Lookup, Narrow, NormSpec, RowSpec


def answer_embed(spec: EmbedSpec, site: Site) -> Lookup:
    """Rows of the table."""
    table = site.parameters.load([f"{spec.name}.weight"], (spec.rows, spec.width))

    def embed(ids: Tensor) -> Tensor:
        return functional.embedding(ids, table)

    return embed


def answer_norm(spec: NormSpec, site: Site) -> Apply:
    """RMSNorm; statistics in fp32 whatever the dtype."""
    weight = site.parameters.load([f"{spec.name}.weight"], (spec.width,))
    if spec.offset:
        weight = weight + spec.offset
    shape, eps = (spec.width,), spec.eps

    def norm(x: Tensor) -> Tensor:
        return functional.rms_norm(x, shape, weight, eps)

    return norm


def answer_rows(spec: RowSpec, site: Site) -> Narrow:
    """The rows that the windows want, in their order."""

    def narrow(hidden: Tensor, ctx: ForwardContext) -> Tensor:
        if ctx.logit_rows == ctx.rows:
            return hidden
        return hidden.index_select(0, ctx.state(BATCH).wanted(ctx))

    return narrow
