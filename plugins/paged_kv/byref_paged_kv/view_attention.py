"""Attention on a CPU that reads pages where they lie. Knows which pages follow one another; nothing of who shares them."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from byref.answers.attention import Group, PoolAttention
from byref.answers.scores import attend_entries
from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH, SCRATCH
from byref.contract.specs import AttentionSpec
from byref.contract.step import Window
from byref.kv import SlotPool
from byref_paged_kv.space import PagedSpace

LEAST_KEYS = 512
"""A request with fewer entries is gathered with the others: one call for all is faster than one view for each."""


class ViewAttention(PoolAttention):
    """As core's, but where the pages of a decoding request follow one another its entries are read in place."""

    about: ClassVar[str] = "views: reads runs of pages in place on a CPU, gathers the others"

    def __init__(self, spec: AttentionSpec, pool: SlotPool, space: PagedSpace, sinks: Tensor | None) -> None:
        super().__init__(spec, pool, frozenset(), sinks)
        self._space, self._width = space, pool.spec.width
        self._slots = pool
        self.capturable = False  # it looks at the host's windows and pages
        self._reads = sinks is None and spec.softcap is None
        self._run_key = ("views", pool.space, spec.window)

    def _attend(self, q: Tensor, group: Group, ctx: ForwardContext) -> Tensor:
        if group.width > 1 or not self._reads or group.bound < LEAST_KEYS:
            return super()._attend(q, group, ctx)
        spans = ctx.state(SCRATCH).get((*self._run_key, group.first_request), lambda: self._spans(ctx, group))
        if spans is None:
            return super()._attend(q, group, ctx)
        data, spec = self._slots.data, self._spec
        out = q.new_empty(group.requests, spec.heads * spec.value_dim)
        rows = q.view(group.requests, 1, 1, spec.heads, spec.key_dim)
        for i, (first, end) in enumerate(spans):
            out[i] = attend_entries(spec, rows[i], data[None, first:end], None, None)  # type: ignore[arg-type]
        return out

    def _spans(self, ctx: ForwardContext, group: Group) -> list[tuple[int, int]] | None:
        """Slots of what each request's row sees, from first to end; None where some lie apart or are too few."""
        windows = ctx.state(BATCH).host()[group.request_slice]
        if len(windows) < group.requests or sum(w.end for w in windows) < LEAST_KEYS * len(windows):
            return None
        spans = [self._span(window) for window in windows]
        found = [span for span in spans if span is not None]
        return found if len(found) == len(spans) else None

    def _span(self, window: Window) -> tuple[int, int] | None:
        seen = self._spec.window
        first, end, size = max(window.end - seen, 0) if seen is not None else 0, window.end, self._space.per_page
        pages = self._space.held[window.row][first // size : -(-end // size)]
        if pages[0] == 0 or pages != list(range(pages[0], pages[0] + len(pages))):
            return None
        base = pages[0] * size
        return base + first % size, base + first % size + end - first
