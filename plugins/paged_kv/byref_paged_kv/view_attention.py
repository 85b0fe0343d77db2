"""Attention on a CPU that reads pages where they lie. Knows which pages follow one another; not who shares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from byref.answers.attention import Group, PoolAttention
from byref.answers.scores import FOLD_ROWS, split_entries
from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH, SCRATCH
from byref.contract.specs import AttentionSpec
from byref.contract.step import Window
from byref.kv import SlotPool
from byref_paged_kv.space import PagedSpace

Span = tuple[int, int]
MANY_KEYS = 256
"""From here on two products per KV head are faster than scaled-dot-product attention."""
MANY_SHARED = 64
"""From here on entries that all requests share are read in place, once for all."""
MOST_SPANS = 8
SPAN_KEYS = 256
"""Of one request: where its pages lie in more runs than `MOST_SPANS`, or in runs of fewer keys than this on average,
they are gathered, which is faster then. One run is always read in place."""
SHARED_ROWS = 64
"""Up to so many rows per request: all scores of a forward are there at once."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the requests of a group have in common, and what each has of its own."""

    span: Span
    index: Sequence[Tensor]
    """As `attend_heads` wants it, and so is the mask: of the own entries."""
    mask: Tensor


class ViewAttention(PoolAttention):
    """As core's, but entries that lie in a row are read in place: those of one request that decodes alone, and the
    prefix that all requests of a forward share.

    What several requests have of their own is gathered: one call for all of them is faster than a view for each.
    """

    about: ClassVar[str] = (
        "views: runs of pages of one request, or one shared by all, are read in place on a CPU; the rest is gathered"
    )

    def __init__(self, spec: AttentionSpec, pool: SlotPool, space: PagedSpace, sinks: Tensor | None) -> None:
        super().__init__(spec, pool, frozenset(), sinks)
        self.capturable = False  # it looks at the host's windows and pages
        self._spec, self._slots, self._space = spec, pool, space
        self._plain = sinks is None and spec.softcap is None
        # A string is hashed once, the tuples in it at every look-up.
        self._span_key = repr(("span", pool.space, spec.window))
        self._shares = self._by_head and spec.window is None
        self._shared_key = repr(("shared", self._share))

    def _attend(self, q: Tensor, group: Group, ctx: ForwardContext) -> Tensor:
        if group.requests == 1 and group.width == 1 and self._plain:
            (window,) = ctx.state(BATCH).host()[group.request_slice] or (None,)
            key = (self._span_key, group.first_request)
            spans = ctx.state(SCRATCH).get(key, lambda: self._spans(window) if window else None)
            if spans:
                return self._read(q, spans)
        elif group.requests > 1 and group.width <= SHARED_ROWS and self._shares:
            key = (self._shared_key, group.first_request)
            shared = ctx.state(SCRATCH).get(key, lambda: self._common(ctx, group))
            if shared is not None:
                return self._read_shared(q.view(group.requests, group.width, self._spec.heads, -1), shared)
        return super()._attend(q, group, ctx)

    def _read(self, q: Tensor, spans: Sequence[Span]) -> Tensor:
        """q [1, heads, key_dim] over entries that lie in a few runs -> [1, heads * value_dim]: one softmax over all."""
        spec = self._spec
        parts = [split_entries(spec, self._slots.data[None, first:end]) for first, end in spans]
        q = q.view(1, parts[0][0].shape[1], -1, spec.key_dim)
        if len(parts) == 1 and parts[0][0].shape[2] < MANY_KEYS:
            return functional.scaled_dot_product_attention(q, *parts[0], scale=spec.scale).reshape(1, -1)
        sizes = [end - first for first, end in spans]
        heads = []
        for at, query in enumerate((q * spec.scale)[0]):
            scores = [torch.mm(query, k[0, at].t()) for k, _ in parts]
            weights = (scores[0] if len(scores) == 1 else torch.cat(scores, -1)).softmax(-1).split(sizes, -1)
            out = torch.mm(weights[0], parts[0][1][0, at])
            for weight, (_, v) in zip(weights[1:], parts[1:], strict=True):
                out.addmm_(weight, v[0, at])
            heads.append(out)
        return torch.cat(heads).view(1, -1)

    def _read_shared(self, q: Tensor, shared: Shared) -> Tensor:
        """q [requests, width, heads, dim] -> [requests * width, heads * dim]: one softmax over the scores of the common
        entries, which are one product per KV head, and of the own ones."""
        spec, (first, end) = self._spec, shared.span
        requests, width, _, dim = q.shape
        folded = q.view(requests, width, spec.kv_heads, -1, dim).permute(2, 0, 3, 1, 4)
        each, together = folded.reshape(len(shared.mask), -1, dim), folded.reshape(spec.kv_heads, -1, dim) * spec.scale
        k, v = (part[0] for part in split_entries(spec, self._slots.data[None, first:end]))
        far = torch.stack([torch.mm(query, keys.t()) for query, keys in zip(together, k, strict=True)])
        table = self._slots.data.view(-1, dim)
        own = table.index_select(0, shared.index[0]).view(len(shared.mask), -1, dim)
        near = torch.baddbmm(shared.mask, each, own.transpose(1, 2), alpha=spec.scale)
        weights = torch.cat((far.view(len(near), -1, end - first), near), -1).softmax(-1)
        own = table.index_select(0, shared.index[1]).view(len(shared.mask), -1, dim)
        out = torch.bmm(weights[..., end - first :], own).view(spec.kv_heads, -1, dim)
        out.baddbmm_(weights.view(spec.kv_heads, -1, weights.shape[-1])[..., : end - first], v)
        return out.view(spec.kv_heads, requests, -1, width, dim).permute(1, 3, 0, 2, 4).reshape(requests * width, -1)

    def _common(self, ctx: ForwardContext, group: Group) -> Shared | None:
        """The leading pages that all requests of the group have and that follow one another; None where too few."""
        windows, size = ctx.state(BATCH).host()[group.request_slice], self._space.per_page
        if len(windows) < group.requests:  # there is padding
            return None
        tables = [self._space.held[window.row] for window in windows]
        start, most = tables[0][0], min(window.start for window in windows) // size
        alike = (
            set(column) == {start + at} for at, column in zip(range(most), zip(*tables, strict=False), strict=False)
        )
        skip = sum(takewhile(bool, alike)) * size
        if skip < MANY_SHARED:
            return None
        index, mask = self._heads_view(ctx, group, skip)
        if group.width > FOLD_ROWS:  # it is of rows, and is wanted of the query heads of each row
            mask = mask[:, None].expand(-1, self._grouped, -1, -1).flatten(1, 2)
        return Shared((start * size, start * size + skip), index, mask)

    def _spans(self, window: Window) -> tuple[Span, ...] | None:
        """Slots of what the window's row sees, run by run, each from first to end; None where there are too many."""
        seen = self._spec.window
        first, end, size = max(window.end - seen, 0) if seen is not None else 0, window.end, self._space.per_page
        pages = self._space.held[window.row][first // size : -(-end // size)]
        starts = [at for at, page in enumerate(pages) if at == 0 or page != pages[at - 1] + 1]
        if pages[0] == 0 or len(starts) > max(min(MOST_SPANS, (end - first) // SPAN_KEYS), 1):
            return None
        runs = [(pages[at] * size, (pages[to - 1] + 1) * size) for at, to in pairwise((*starts, len(pages)))]
        runs[0] = (runs[0][0] + first % size, runs[0][1])
        runs[-1] = (runs[-1][0], runs[-1][1] - (-end % size))
        return tuple(runs)
