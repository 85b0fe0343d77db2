"""Answers indexers: keeps keys, scores a request's whole history, holds the selection. Knows pools and batches."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from byref.answers.attention import Group, host_groups, visible
from byref.contract.calls import Select
from byref.contract.context import ForwardContext, Kind
from byref.contract.roles import BATCH, SCRATCH, Pool, Site
from byref.contract.sparse import IndexSpec
from byref_dsa import Options
from byref_dsa.choice import chooses_triton
from byref_dsa.codecs import hadamard, round_fp8
from byref_dsa.layout import Layout, keys_pool
from byref_dsa.scoring import best, index_scores
from byref_dsa.states import NOTHING, SlotMappings, TopKShare


class Borrow:
    """A layer without an indexer: the selection of the last full layer stands."""

    about: ClassVar[str] = "shared: the selection of the full layer before"

    def __call__(self, q: Tensor | None, k: Tensor | None, weights: Tensor | None, ctx: ForwardContext) -> None:
        ctx.state(TopKShare.key).check(ctx)


class Selector:
    """Writes the rows' keys, scores every key that a row may see, and holds the best.

    Rows of requests with equally many rows are scored together, as attention does it.
    """

    about: ClassVar[str] = "torch: scores of a request's whole history, the best by score and position"

    def __init__(self, spec: IndexSpec, pool: Pool, captured: frozenset[Kind], rounded: bool) -> None:
        self._spec, self._pool, self._rounded = spec, pool, rounded
        self._pads = Kind.MIXED in captured
        self.capturable: bool | frozenset[Kind] = self._pads or frozenset({Kind.DECODE, Kind.IDLE})

    def __call__(self, q: Tensor | None, k: Tensor | None, weights: Tensor | None, ctx: ForwardContext) -> None:
        assert q is not None
        assert weights is not None
        share = ctx.state(TopKShare.key)
        if self._rounded:
            q = round_fp8(hadamard(q))
        if k is not None:
            self._pool.write(ctx, hadamard(k) if self._rounded else k)
        if self._spec.carried and ctx.draft_step:
            share.carry(self._spec.top_k, ctx)
        else:
            share.hold(self._choose(q, weights, ctx), ctx)

    def _choose(self, q: Tensor, weights: Tensor, ctx: ForwardContext) -> Tensor:
        if ctx.context_bound // self._spec.ratio <= self._spec.top_k:
            return ctx.state(SlotMappings.key).get(("all", self._spec.ratio), lambda: self._all(ctx))
        if ctx.rows_per_request:
            group = Group(0, ctx.requests, 0, ctx.rows_per_request, ctx.context_bound)
            return self._best(q, weights, group, group.rows(q.device), ctx)
        if self._pads:
            return self._padded(q, weights, ctx)
        chosen = torch.empty(ctx.rows, self._spec.top_k, dtype=torch.int64, device=q.device)
        for group in ctx.state(SCRATCH).get("groups", lambda: tuple(host_groups(ctx.state(BATCH).host()))):
            rows = group.rows(q.device)
            found = self._best(q[group.row_slice], weights[group.row_slice], group, rows, ctx)
            chosen[group.row_slice, : found.shape[1]] = found
            chosen[group.row_slice, found.shape[1] :].fill_(NOTHING)
        return chosen

    def _all(self, ctx: ForwardContext) -> Tensor:
        """Where there are no more entries than are selected, what a row sees is its selection."""
        batch, count = ctx.state(BATCH), ctx.context_bound // self._spec.ratio
        entry = torch.arange(count, device=batch.index(ctx).device)
        if self._spec.ratio > 1:
            seen = entry < ((batch.positions(ctx) + 1) // self._spec.ratio)[:, None]
        else:
            ahead = entry - batch.frontier(ctx)[:, None]
            seen = (ahead < 0) | (batch.ancestors(ctx)[:, None] >> ahead.clamp(0, 63) & 1).bool()
        return torch.where(seen, entry, NOTHING)

    def _best(self, q: Tensor, weights: Tensor, group: Group, rows: Tensor, ctx: ForwardContext) -> Tensor:
        """[the group's rows, up to top_k]."""
        slots, seen = ctx.state(SlotMappings.key).get(
            ("keys", self._pool.space, group.first_request), lambda: self._view(group, rows, ctx)
        )
        shape = (group.requests, group.width)
        scores = self._score(q.unflatten(0, shape), slots, weights.unflatten(0, shape))
        return best(scores, seen, min(self._spec.top_k, scores.shape[-1])).flatten(0, 1)

    def _score(self, q: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
        """q [requests, width, heads, dim], slots [requests, keys] -> scores [requests, width, keys] fp32."""
        return index_scores(q, self._pool.read(slots), weights)

    def _padded(self, q: Tensor, weights: Tensor, ctx: ForwardContext) -> Tensor:
        """Every request gets as many rows as the whole forward has: wasteful, free of host values."""
        batch, width = ctx.state(BATCH), ctx.rows
        starts, request = batch.starts(ctx), batch.request_of_row(ctx)
        step = torch.arange(width, device=q.device)
        take = (starts[:-1, None] + step).clamp(max=width - 1)
        group = Group(0, ctx.requests, 0, width, ctx.context_bound)
        flat = take.flatten()
        found = self._best(q.index_select(0, flat), weights.index_select(0, flat), group, take, ctx)
        return found.index_select(0, request * width + step - starts[request])

    def _view(self, group: Group, rows: Tensor, ctx: ForwardContext) -> tuple[Tensor, Tensor]:
        """Slots [requests, keys], and which row sees which key [requests, width, keys]."""
        batch, ratio = ctx.state(BATCH), self._spec.ratio
        lengths = batch.lengths(ctx)[group.request_slice, None] // ratio
        if ratio > 1:
            index = torch.arange(group.bound // ratio, device=rows.device)[None]
            seen = index[:, None] < ((batch.positions(ctx)[rows] + 1) // ratio)[..., None]
        else:
            index, seen = visible(batch, ctx, group, rows, None)
        # What lies beyond the length may be anything, NaN included: read a real key in its place.
        real = torch.minimum(index, lengths - 1).clamp(min=0)
        return self._pool.slots(batch.request_rows(ctx)[group.request_slice, None], real), seen


def answer_index(spec: IndexSpec, site: Site, layout: Layout, options: Options) -> Select:
    """The selection of one layer."""
    if spec.shared:
        return Borrow()
    name = keys_pool(spec) if spec.keys is None else layout.compressor(spec.role, spec.keys).pool_name
    pool = site.kv.pool(spec.role, name)
    kind: type[Selector] = Selector
    if chooses_triton(options.kernels, site.sizing.device, (pool,)):
        from byref_dsa.triton_paths import TritonSelector

        kind = TritonSelector
    return kind(spec, pool, site.sizing.captured, options.index_keys == "fp8" and spec.keys is None)
