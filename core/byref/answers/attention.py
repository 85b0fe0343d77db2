"""Attention through the Pool contract. Knows rows, entries and masks; must not know how slots are laid out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import torch
from torch import Tensor

from byref.answers.scores import FOLD_ROWS, attend_entries, attend_heads, fold_mask
from byref.contract.calls import Attend
from byref.contract.context import ForwardContext, Kind
from byref.contract.errors import PluginError
from byref.contract.roles import BATCH, SCRATCH, Batch, Pool, Site
from byref.contract.specs import AttentionSpec
from byref.contract.step import Window


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of a forward that have the same number of rows (`width`)."""

    first_request: int
    requests: int
    first_row: int
    width: int
    bound: int
    """No request of the group has more cache entries."""

    @property
    def request_slice(self) -> slice:
        return slice(self.first_request, self.first_request + self.requests)

    @property
    def row_slice(self) -> slice:
        return slice(self.first_row, self.first_row + self.requests * self.width)

    def rows(self, device: torch.device) -> Tensor:
        """The forward's rows that are its own, [requests, width]."""
        span = self.row_slice
        return torch.arange(span.start, span.stop, device=device).view(self.requests, self.width)


class PoolAttention:
    """Writes the rows' entries, then attends group by group over what `Pool.slots` finds.

    A forward whose requests all have the same number of rows is one group. A ragged one is split by the
    host's windows where it runs eagerly, and padded to one group where it is captured.
    """

    about: ClassVar[str] = "gather: entries are copied out of the pool, then attended to; on any device"

    def __init__(self, spec: AttentionSpec, pool: Pool, captured: frozenset[Kind], sinks: Tensor | None) -> None:
        self._spec, self._pool, self._sinks = spec, pool, sinks
        self._pads = Kind.MIXED in captured
        self.capturable: bool | frozenset[Kind] = self._pads or frozenset({Kind.DECODE, Kind.IDLE})
        # Latent attention keeps its heads apart: nothing is folded into the query length.
        self._grouped = 1 if spec.form == "mla" else spec.heads // spec.kv_heads
        self._by_head = sinks is None and lies_by_head(spec, pool)
        # Layers of equal views share one; a string is hashed once, the tuples in it at every look-up.
        self._share = repr(("attend", pool.space, spec.window, self._grouped, spec.kv_heads, self._by_head))

    def __call__(self, q: Tensor, kv: Tensor, ctx: ForwardContext) -> Tensor:
        self._pool.write(ctx, kv)
        if ctx.rows_per_request:
            return self._attend(q, Group(0, ctx.requests, 0, ctx.rows_per_request, ctx.context_bound), ctx)
        if self._pads:
            return self._padded(q, ctx)
        out = q.new_empty(ctx.rows, self._spec.heads * self._spec.value_dim)
        batch = ctx.state(BATCH)
        for group in ctx.state(SCRATCH).get("groups", lambda: tuple(host_groups(batch.host()))):
            out[group.row_slice] = self._attend(q[group.row_slice], group, ctx)
        return out

    def _attend(self, q: Tensor, group: Group, ctx: ForwardContext) -> Tensor:
        q = q.view(group.requests, group.width, self._spec.heads, self._spec.key_dim)
        key, scratch = (self._share, group.first_request), ctx.state(SCRATCH)
        if self._by_head and group.requests > 1 and group.width <= FOLD_ROWS:
            index, mask = scratch.get(key, lambda: self._heads_view(ctx, group))
            return attend_heads(self._spec, q, self._pool.data.view(-1, self._spec.key_dim), index, mask)
        slots, mask = scratch.get(key, lambda: self._view(ctx, group, group.rows(q.device)))
        return attend_entries(self._spec, q, self._pool.read(slots), mask, self._sinks)

    def _padded(self, q: Tensor, ctx: ForwardContext) -> Tensor:
        """Every request gets as many rows as the whole forward has: wasteful, free of host values."""
        batch, width = ctx.state(BATCH), ctx.rows
        starts, request = batch.starts(ctx), batch.request_of_row(ctx)
        step = torch.arange(width, device=q.device)
        take = (starts[:-1, None] + step).clamp(max=width - 1)
        group = Group(0, ctx.requests, 0, width, ctx.context_bound)
        slots, mask = ctx.state(SCRATCH).get((self._share, "padded"), lambda: self._view(ctx, group, take))
        padded = q.index_select(0, take.flatten()).unflatten(0, take.shape)
        out = attend_entries(self._spec, padded, self._pool.read(slots), mask, self._sinks)
        return out.index_select(0, request * width + step - starts[request])

    def _heads_view(self, ctx: ForwardContext, group: Group, skip: int = 0) -> tuple[Sequence[Tensor], Tensor]:
        """As `_view`, for `attend_heads` on the pool cut into heads."""
        heads = self._spec.kv_heads
        slots, mask = self._view(ctx, group, group.rows(ctx.state(BATCH).index(ctx).device), skip)
        of_head = torch.arange(2 * heads, device=slots.device).view(-1, 1, 1)
        index = (slots * 2 * heads + of_head).view(2, -1)
        return index.unbind(), mask.squeeze(1).repeat(heads, 1, 1)

    def _view(self, ctx: ForwardContext, group: Group, rows: Tensor, skip: int = 0) -> tuple[Tensor, Tensor]:
        """Slots [requests, keys] and mask [requests, 1, queries, keys] of a group; `rows` [requests, width]. Of the
        keys the first `skip` are left out."""
        batch, dtype = ctx.state(BATCH), self._pool.spec.dtype
        index, seen = visible(batch, ctx, group, rows, self._spec.window)
        index, seen = index[:, skip:], seen[..., skip:]
        lengths = batch.lengths(ctx)[group.request_slice, None]
        # An entry beyond the length may hold anything, NaN included, and NaN passes through a mask: read a real one.
        real = torch.minimum(index, lengths - 1).clamp(min=0)
        slots = self._pool.slots(batch.request_rows(ctx)[group.request_slice, None], real)
        # Not minus infinity: of a padding row that sees nothing NaN would come, and reach the sink with its entry.
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
        return slots, fold_mask(mask, self._grouped)


def visible(batch: Batch, ctx: ForwardContext, group: Group, rows: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Cache indices [requests, keys] that some row may see, and which row sees which [requests, width, keys]."""
    offsets = batch.offsets(ctx)[group.request_slice, None]
    keys, first = group.bound, torch.zeros_like(offsets)
    if window is not None:
        keys, first = min(keys, window - 1 + group.width), (offsets - window + 1).clamp(min=0)
    index = first + torch.arange(keys, device=rows.device)
    ahead = index[:, None, :] - batch.frontier(ctx)[rows][:, :, None]
    seen = (ahead < 0) | (batch.ancestors(ctx)[rows][:, :, None] >> ahead.clamp(0, 63) & 1).bool()
    if window is not None:
        position = batch.positions(ctx)[rows]
        inside = (index - offsets).clamp(0, group.width - 1)
        of_key = torch.where(index < offsets, index, position.gather(1, inside))
        seen &= position[:, :, None] - of_key[:, None, :] < window
    return index, seen


def lies_by_head(spec: AttentionSpec, pool: Pool) -> bool:
    """Whether entries may be read as rows of single heads: on a CPU, where many short grouped softmaxes are slow as
    scaled-dot-product attention (10 ms a layer for 64 requests of 256 tokens, 1 to 2 as batched products)."""
    plain = spec.form == "mha" and spec.key_dim == spec.value_dim and spec.softcap is None
    return plain and pool.spec.codec is None and pool.data.device.type == "cpu" and pool.data.is_contiguous()


def host_groups(windows: Sequence[Window]) -> Iterator[Group]:
    """Runs of windows with the same number of rows."""
    request = row = 0
    for width, run in groupby(windows, key=lambda window: len(window.tokens)):
        ends = [window.end for window in run]
        yield Group(request, len(ends), row, width, max(ends))
        request, row = request + len(ends), row + len(ends) * width


def answer_attention(spec: AttentionSpec, site: Site) -> Attend:
    """Attention of every form over all that a row may see.

    Raises:
        PluginError: it sees a selection or compressed entries, which a plugin keeps.
    """
    if spec.selection is not None or spec.compressed is not None:
        raise PluginError(
            f"nobody answers the sparse attention {spec.name!r}",
            where=f"role {spec.role}, layer {spec.layer}",
            hint="enable the plugin that answers its indexer or compressor",
        )
    sinks = site.parameters.load([spec.sinks], (spec.heads,)) if spec.sinks else None
    return PoolAttention(spec, site.kv.pool(spec.role, spec.pool_name), site.sizing.captured, sinks)
