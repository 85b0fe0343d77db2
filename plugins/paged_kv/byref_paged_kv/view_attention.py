"""Attention on a CPU that reads pages where they lie. Knows which pages follow one another; not who shares them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from byref.answers.attention import Group, PoolAttention
from byref.answers.scores import split_entries
from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH, SCRATCH
from byref.contract.specs import AttentionSpec
from byref.contract.step import Window
from byref.kv import SlotPool
from byref_paged_kv.space import PagedSpace

Span = tuple[int, int]
MANY_KEYS = 256
"""From here on two products per KV head are faster than scaled-dot-product attention."""


class ViewAttention(PoolAttention):
    """As core's, but where one request decodes alone and its pages follow one another, its entries are read in place.

    Several requests are gathered: one call for all of them is faster than a view for each.
    """

    about: ClassVar[str] = "views: one request's run of pages is read in place on a CPU, several requests are gathered"

    def __init__(self, spec: AttentionSpec, pool: SlotPool, space: PagedSpace, sinks: Tensor | None) -> None:
        super().__init__(spec, pool, frozenset(), sinks)
        self.capturable = False  # it looks at the host's windows and pages
        self._spec, self._slots, self._space = spec, pool, space
        self._plain = sinks is None and spec.softcap is None
        # A string is hashed once, the tuples in it at every look-up.
        self._span_key = repr(("span", pool.space, spec.window))

    def _attend(self, q: Tensor, group: Group, ctx: ForwardContext) -> Tensor:
        if group.requests == 1 and group.width == 1 and self._plain:
            (window,) = ctx.state(BATCH).host()[group.request_slice] or (None,)
            key = (self._span_key, group.first_request)
            span = ctx.state(SCRATCH).get(key, lambda: self._span(window) if window else None)
            if span is not None:
                return self._read(q, span)
        return super()._attend(q, group, ctx)

    def _read(self, q: Tensor, span: Span) -> Tensor:
        """q [1, heads, key_dim] over entries that lie in a row -> [1, heads * value_dim]."""
        spec = self._spec
        k, v = split_entries(spec, self._slots.data[None, span[0] : span[1]])
        q = q.view(1, k.shape[1], -1, spec.key_dim)
        if k.shape[2] < MANY_KEYS:
            return functional.scaled_dot_product_attention(q, k, v, scale=spec.scale).reshape(1, -1)
        heads = [
            torch.mm(torch.mm(query, keys.t()).softmax(-1), values)
            for query, keys, values in zip((q * spec.scale)[0], k[0], v[0], strict=True)
        ]
        return torch.cat(heads).view(1, -1)

    def _span(self, window: Window) -> Span | None:
        """Slots of what the window's row sees, from first to end; None where some lie apart."""
        seen = self._spec.window
        first, end, size = max(window.end - seen, 0) if seen is not None else 0, window.end, self._space.per_page
        pages = self._space.held[window.row][first // size : -(-end // size)]
        if pages[0] == 0 or pages != list(range(pages[0], pages[0] + len(pages))):
            return None
        base = pages[0] * size
        return base + first % size, base + first % size + end - first
