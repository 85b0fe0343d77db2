"""Multi-head latent attention, absorbed: queries are taken into the latent, outputs out of it. Knows no request."""

from __future__ import annotations

import torch
from torch import Tensor

from byref.answers.expanded import ExpandedAttention
from byref.contract.calls import AttendLatent
from byref.contract.context import ForwardContext
from byref.contract.roles import Site
from byref.contract.specs import LatentAttentionSpec


class LatentAttention:
    """q' = q W_k and o = o' W_v, head by head, around an attention whose one key-value head is the latent.

    So keys and values are never made: a row reads `value_dim` + rotary elements of each entry for all heads
    (DeepSeek-V2, section 2.1). Dense attention over many rows at once is left to the expanded form, which is the same
    and cheaper there.
    """

    def __init__(self, spec: LatentAttentionSpec, site: Site) -> None:
        attention = spec.attention
        self._heads, self._latent, self._width = attention.heads, attention.value_dim, attention.key_dim
        self._plain = spec.plain_dim
        self._norm, self._rotate = site.resolve(spec.norm), site.resolve(spec.rotary)
        self._attend = site.resolve(attention)
        rows = spec.plain_dim + spec.head_value_dim
        expand = site.parameters.load([spec.expand.name], (self._heads * rows, self._latent))
        by_head = expand.view(self._heads, rows, self._latent)
        self._expanded: ExpandedAttention | None = None
        if attention.selection is None:
            pool = site.kv.pool(attention.role, attention.pool_name)
            self._expanded = ExpandedAttention(spec, pool, site.sizing.captured, by_head)
        self._keys = by_head[:, : spec.plain_dim].contiguous()
        self._values = by_head[:, spec.plain_dim :].transpose(1, 2).contiguous()

    def __call__(self, q: Tensor, latent: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        rows, inner, plain = len(q), self._latent, self._plain
        latent[:, :inner] = self._norm(latent[:, :inner])
        self._rotate(latent[:, None, inner:], positions, ctx)
        if self._expanded is not None and self._expanded.gains(ctx):
            self._rotate(q[..., plain:], positions, ctx)
            return self._expanded(q, latent, ctx)
        query = q.new_empty(rows, self._heads, self._width)
        query[..., :inner] = torch.bmm(q[..., :plain].transpose(0, 1), self._keys).transpose(0, 1)
        query[..., inner:] = q[..., plain:]
        self._rotate(query[..., inner:], positions, ctx)
        out = self._attend(query, latent, ctx).view(rows, self._heads, inner)
        return torch.bmm(out.transpose(0, 1), self._values).transpose(0, 1).reshape(rows, -1)


def answer_latent_attention(spec: LatentAttentionSpec, site: Site) -> AttendLatent:
    """The absorbed form around whoever answers `spec.attention`."""
    return LatentAttention(spec, site)
