"""Attention over gathered entries: a selection, or a window beside compressed ones. Knows pools; chooses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import torch
from torch import Tensor

from byref.answers.attention import PoolAttention
from byref.answers.scores import attend_entries
from byref.contract.calls import Attend
from byref.contract.context import ForwardContext, Kind
from byref.contract.roles import BATCH, Pool, Site
from byref.contract.specs import AttentionSpec
from byref_dsa import Options
from byref_dsa.choice import chooses_triton
from byref_dsa.layout import Layout
from byref_dsa.states import SlotMappings, TopKShare

BLOCK: Final = 1 << 24
"""Elements of entries that are gathered at once."""
Slots = tuple[Tensor, Tensor]
"""Slots [rows, entries] and which of them the row sees [rows, entries] bool."""


class GatheredAttention:
    """Each row reads the entries that it sees and no others, so that its cost follows their number, not the context.

    A selection that cannot be smaller than the context is left to dense attention.
    """

    about: ClassVar[str] = "torch: each row reads the entries it sees"

    def __init__(self, spec: AttentionSpec, own: Pool, compressed: Pool | None, site: Site) -> None:
        self._spec, self._own, self._compressed = spec, own, compressed
        self._sinks = site.parameters.load([spec.sinks], (spec.heads,)) if spec.sinks else None
        self._dense: PoolAttention | None = None
        self.capturable: bool | frozenset[Kind] = True
        if compressed is None:
            self._dense = PoolAttention(spec, own, site.sizing.captured, self._sinks)
            self.capturable = self._dense.capturable

    def __call__(self, q: Tensor, kv: Tensor, ctx: ForwardContext) -> Tensor:
        selection = self._spec.selection
        if self._dense is not None and selection is not None and ctx.context_bound <= selection.top_k:
            return self._dense(q, kv, ctx)
        self._own.write(ctx, kv)
        return self._attend(q, self._parts(ctx))

    def _parts(self, ctx: ForwardContext) -> list[tuple[Pool, Slots]]:
        """What each row sees, pool by pool."""
        if self._compressed is None:
            return [(self._own, self._selected(self._own, ctx))]
        compressed = self._selected if self._spec.selection is not None else self._closed
        return [(self._own, self._windowed(ctx)), (self._compressed, compressed(self._compressed, ctx))]

    def _selected(self, pool: Pool, ctx: ForwardContext) -> Slots:
        selection = self._spec.selection
        assert selection is not None

        def find() -> Slots:
            entries = ctx.state(TopKShare.key).lend(selection.top_k, ctx)
            return self._slots(pool, entries.clamp(min=0), ctx), entries >= 0

        return self._once(("selected", pool.space, selection.source), find, ctx)

    def _windowed(self, ctx: ForwardContext) -> Slots:
        window = self._spec.window
        assert window is not None

        def find() -> Slots:
            positions = ctx.state(BATCH).positions(ctx)
            index = positions[:, None] + torch.arange(1 - window, 1, device=positions.device)
            return self._slots(self._own, index.clamp(min=0), ctx), index >= 0

        return self._once(("window", self._own.space, window), find, ctx)

    def _closed(self, pool: Pool, ctx: ForwardContext) -> Slots:
        ratio = pool.spec.stride

        def find() -> Slots:
            positions = ctx.state(BATCH).positions(ctx)
            entry = torch.arange(ctx.context_bound // ratio, device=positions.device)
            seen = entry < ((positions + 1) // ratio)[:, None]
            return self._slots(pool, torch.where(seen, entry, 0), ctx), seen

        return self._once(("closed", pool.space), find, ctx)

    def _slots(self, pool: Pool, index: Tensor, ctx: ForwardContext) -> Tensor:
        return pool.slots(ctx.state(BATCH).rows(ctx)[:, None], index)

    @staticmethod
    def _once(key: tuple[object, ...], find: Callable[[], Slots], ctx: ForwardContext) -> Slots:
        return ctx.state(SlotMappings.key).get(key, find)

    def _attend(self, q: Tensor, parts: list[tuple[Pool, Slots]]) -> Tensor:
        """q [rows, heads, key_dim] -> [rows, heads * value_dim], in blocks of rows."""
        spec = self._spec
        seen = torch.cat([part[1] for _, part in parts], 1)
        out = q.new_empty(len(q), spec.heads * spec.value_dim)
        block = max(BLOCK // (max(seen.shape[1], 1) * spec.entry_width), 1)
        for first in range(0, len(q), block):
            rows = slice(first, first + block)
            entries = torch.cat([pool.read(slots[rows]) for pool, (slots, _) in parts], 1)
            mask = torch.zeros(seen[rows].shape, dtype=entries.dtype, device=q.device)
            mask = mask.masked_fill_(~seen[rows], torch.finfo(entries.dtype).min)[:, None, None]
            out[rows] = attend_entries(spec, q[rows].unsqueeze(1), entries, mask, self._sinks)
        # A row that sees nothing is padding, or a hole: zeros, rather than the mean of what it may not see.
        return out.masked_fill_(~seen.any(1, keepdim=True), 0.0)


def answer_attention(spec: AttentionSpec, site: Site, layout: Layout, options: Options) -> Attend:
    """The attention of one layer with a selection or compressed entries."""
    own = site.kv.pool(spec.role, spec.pool_name)
    compressed = None
    if spec.compressed is not None:
        name = layout.compressor(spec.role, spec.compressed.source).pool_name
        compressed = site.kv.pool(spec.role, name)
    kind: type[GatheredAttention] = GatheredAttention
    if chooses_triton(options.kernels, site.sizing.device, (own, compressed)):
        from byref_dsa.triton_paths import TritonGathered

        kind = TritonGathered
    return kind(spec, own, compressed, site)
