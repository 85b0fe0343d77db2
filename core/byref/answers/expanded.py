"""Latent attention in expanded form: each head's keys and values are made from the latent. Knows entries and groups."""

from __future__ import annotations

from typing import ClassVar, Final

import torch
from torch import Tensor
from torch.nn import functional

from byref.answers.attention import Group, PoolAttention, host_groups
from byref.answers.scores import FOLD_ROWS
from byref.contract.context import ForwardContext, Kind
from byref.contract.roles import BATCH, SCRATCH, Pool
from byref.contract.specs import LatentAttentionSpec

BLOCK: Final = 1 << 25
"""Elements of keys that are made at once."""


class ExpandedAttention(PoolAttention):
    """Fewer products per query and key than the absorbed form, and a product per key before the first query.

    A request gains from about `worth` rows on: they share the keys that are made for them.
    """

    about: ClassVar[str] = "expanded: keys and values of each head, for forwards of many rows"

    def __init__(self, spec: LatentAttentionSpec, pool: Pool, captured: frozenset[Kind], expand: Tensor) -> None:
        super().__init__(spec.attention, pool, captured, None)
        self._latent, self._captured, self._expand = spec, captured, expand
        inner, made = spec.attention.value_dim, spec.plain_dim + spec.head_value_dim
        gained = 2 * inner - made
        self.worth = max(inner * made // gained + 1, FOLD_ROWS + 1) if gained > 0 else None

    def gains(self, ctx: ForwardContext) -> bool:
        """Whether every request of the forward has enough rows; a captured one is never asked on the host."""
        if self.worth is None or ctx.kind in self._captured or ctx.kind in (Kind.DECODE, Kind.IDLE):
            return False
        if ctx.rows_per_request:
            return ctx.rows_per_request >= self.worth
        return all(group.width >= self.worth for group in self._groups(ctx))

    def __call__(self, q: Tensor, kv: Tensor, ctx: ForwardContext) -> Tensor:
        """q [rows, heads, plain_dim + rotary dim] -> [rows, heads * head_value_dim]."""
        self._pool.write(ctx, kv)
        if ctx.rows_per_request:
            return self._attend(q, Group(0, ctx.requests, 0, ctx.rows_per_request, ctx.context_bound), ctx)
        out = q.new_empty(ctx.rows, self._spec.heads * self._latent.head_value_dim)
        for group in self._groups(ctx):
            out[group.row_slice] = self._attend(q[group.row_slice], group, ctx)
        return out

    @staticmethod
    def _groups(ctx: ForwardContext) -> tuple[Group, ...]:
        return ctx.state(SCRATCH).get("groups", lambda: tuple(host_groups(ctx.state(BATCH).host())))

    def _attend(self, q: Tensor, group: Group, ctx: ForwardContext) -> Tensor:
        spec, plain = self._latent, self._latent.plain_dim
        key, scratch = (self._share, group.first_request), ctx.state(SCRATCH)
        slots, mask = scratch.get(key, lambda: self._view(ctx, group, group.rows(q.device)))
        entries = self._pool.read(slots)
        inner, turned = entries[..., : self._spec.value_dim], entries[:, None, :, self._spec.value_dim :]
        q = q.view(group.requests, group.width, self._spec.heads, -1).transpose(1, 2)
        out = q.new_empty(group.requests, group.width, self._spec.heads, spec.head_value_dim)
        heads = max(BLOCK // (entries.shape[0] * entries.shape[1] * q.shape[-1]), 1)
        for first in range(0, self._spec.heads, heads):
            some = slice(first, first + heads)
            made = torch.einsum("rkl,hdl->rhkd", inner, self._expand[some])
            keys = torch.cat((made[..., :plain], turned.expand(-1, made.shape[1], -1, -1)), -1)
            found = functional.scaled_dot_product_attention(
                q[:, some], keys, made[..., plain:], attn_mask=mask, scale=self._spec.scale
            )
            out[:, :, some] = found.transpose(1, 2)
        return out.flatten(0, 1).flatten(1)
