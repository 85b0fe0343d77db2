"""Pools of slots, for any KV that can say where an entry lies. Knows rows, entries and versions, not who holds memory.

A KV brings a `Space`; the pool on it does what the contract asks of every pool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.errors import ConfigError
from byref.contract.roles import BATCH, SCRATCH, Sizing
from byref.contract.specs import PoolSpec


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a pool's memory of one request is laid out: the entries of a per-token pool or the versions of a per-request
    one, and beside them a stage of one slot per row of a verify window, which strided pools need for trees."""

    per_request: bool
    stride: int
    versions: int
    window: int | None
    stage: int

    @classmethod
    def of(cls, spec: PoolSpec, sizing: Sizing) -> Geometry:
        """The geometry of `spec`'s pool."""
        stage = sizing.max_drafts + 1 if spec.stride > 1 else 0
        return cls(spec.per == "request", spec.stride, spec.versions, spec.window, stage)

    def entries(self, tokens: int) -> int:
        """Slots, without the stage, of a request of so many tokens."""
        return self.versions if self.per_request else -(-tokens // self.stride)


class Space(ABC):
    """Where entries lie: the same for every pool of one geometry, of whatever role. Slot 0 is the sink."""

    geometry: Geometry
    slots: int
    """Slots there are, the sink included."""

    @abstractmethod
    def place(self, rows: Tensor, entry: Tensor) -> Tensor:
        """Device: slots of entries (int64) of request rows; meaningless where the request has no such entry."""

    @abstractmethod
    def stage(self, rows: Tensor, row: Tensor) -> Tensor:
        """Device: slots of rows of a verify window, kept apart until commit."""

    @abstractmethod
    def copies(self, source: int, target: int) -> list[tuple[int, int]]:
        """Host: slot pairs (from, to) that give request row `target` what request row `source` has of its own."""

    @abstractmethod
    def at(self, row: int, entry: int) -> int:
        """Host: the slot of one entry of one request row."""

    @abstractmethod
    def stage_at(self, row: int, window_row: int) -> int:
        """Host: the slot of one row of a verify window."""


class Bounds:
    """By request row of one role's forward: entries before its window and with it. Refilled for each forward."""

    def __init__(self, sizing: Sizing) -> None:
        self._before = torch.zeros(sizing.max_requests + 1, dtype=torch.int64, device=sizing.device)
        self._after = torch.zeros_like(self._before)

    def refill(self, ctx: ForwardContext) -> None:
        """Rows that are not in the forward get 0: they have no readable entry."""
        batch = ctx.state(BATCH)
        rows = batch.request_rows(ctx)
        self._before.zero_().index_copy_(0, rows, batch.offsets(ctx))
        self._after.zero_().index_copy_(0, rows, batch.lengths(ctx))

    def lend(self) -> tuple[Tensor, Tensor]:
        """Both tables, [request rows] int64."""
        return self._before, self._after


def _room(slots: int, width: int, dtype: torch.dtype, sizing: Sizing) -> Tensor:
    try:
        return torch.empty(slots, width, dtype=dtype, device=sizing.device)
    except RuntimeError as cause:  # what torch raises where there is no memory
        pools = len(sizing.pools)
        raise ConfigError(
            f"there is no memory for the KV cache: {slots * width * dtype.itemsize:,} bytes for one of {pools} pools",
            where=f"[engine] kv_tokens, {sizing.kv_tokens:,} tokens, or what the KV plugin sizes by",
            hint="fewer tokens, fewer max_requests, or a shorter max_context",
        ) from cause


class SlotPool:
    """One tensor of slots on a space.

    Per-token: entry e of a request lies where the space says. Per-request: the state after cache index t is
    entry t % versions, so the newest `versions` states are there and a chain needs no copy. `slots` hides what
    the contract does not promise, so nobody comes to rely on it.
    """

    def __init__(self, spec: PoolSpec, space: Space, bounds: Bounds, sizing: Sizing) -> None:
        codec = spec.codec
        self._spec, self._space, self._bounds = spec, space, bounds
        # Not zeroed: untouched pages then cost no memory, and nothing may depend on what a free slot holds.
        width, dtype = (codec.width(spec.width), codec.dtype) if codec else (spec.width, spec.dtype)
        self._data = _room(space.slots, width, dtype, sizing)
        self._data[0] = 0

    @property
    def spec(self) -> PoolSpec:
        return self._spec

    @property
    def space(self) -> Hashable:
        return self._spec.role, self._space.geometry

    @property
    def placement(self) -> Space:
        """Where its entries lie."""
        return self._space

    @property
    def data(self) -> Tensor:
        return self._data

    def write(self, ctx: ForwardContext, values: Tensor) -> None:
        scratch, codec = ctx.state(SCRATCH), self._spec.codec
        stored = codec.encode(values) if codec else values
        slots = scratch.get(("write", self.space), lambda: self._write_slots(ctx))
        self._data.index_copy_(0, slots, stored)
        if self._space.geometry.stage:
            stage = scratch.get(("stage", self.space), lambda: self._stage_slots(ctx))
            self._data.index_copy_(0, stage, stored)

    def slots(self, rows: Tensor, index: Tensor) -> Tensor:
        g = self._space.geometry
        before, after = (table[rows] for table in self._bounds.lend())
        if g.per_request:
            first, end, entry = before - g.versions, after, index % g.versions
        else:
            first = before // g.stride - g.window if g.window is not None else torch.zeros_like(before)
            end, entry = after // g.stride, index
        kept = (index >= first.clamp(min=0)) & (index < end)
        return torch.where(kept, self._space.place(rows, torch.where(kept, entry, 0)), 0)

    def read(self, slots: Tensor) -> Tensor:
        flat = self._data.index_select(0, slots.reshape(-1))
        values = self._spec.codec.decode(flat) if self._spec.codec else flat
        return values.view(*slots.shape, self._spec.width)

    def keep(self, row: int, start: int, path: Sequence[int]) -> None:
        """Rows `path` of the window at `start` become cache indices start, start + 1, ..., here."""
        self.move([pair for pair in self._moves(row, start, path) if pair[0] != pair[1]])

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots, all at once: (from, to)."""
        if pairs:
            source, target = torch.tensor(pairs, device=self._data.device).unbind(1)
            self._data[target] = self._data[source]

    def _write_slots(self, ctx: ForwardContext) -> Tensor:
        """Padding rows, rows that close no entry and states that are not kept go to the sink."""
        batch, g = ctx.state(BATCH), self._space.geometry
        rows, index = batch.rows(ctx), batch.index(ctx)
        if g.per_request:
            newest = index >= batch.lengths(ctx)[batch.request_of_row(ctx)] - g.versions
            return torch.where((rows > 0) & newest, self._space.place(rows, index % g.versions), 0)
        if g.stride == 1:
            return torch.where(rows > 0, self._space.place(rows, index), 0)
        position = batch.positions(ctx)
        closes = (rows > 0) & ((position + 1) % g.stride == 0)
        return torch.where(closes, self._space.place(rows, position // g.stride), 0)

    def _stage_slots(self, ctx: ForwardContext) -> Tensor:
        """Siblings of a tree may close the same entry, so a verify window's rows are kept apart until commit."""
        batch, g = ctx.state(BATCH), self._space.geometry
        rows = batch.rows(ctx)
        row = batch.index(ctx) - batch.offsets(ctx)[batch.request_of_row(ctx)]
        staged = (rows > 0) & (row < g.stage)
        return torch.where(staged, self._space.stage(rows, torch.where(staged, row, 0)), 0)

    def _moves(self, row: int, start: int, path: Sequence[int]) -> list[tuple[int, int]]:
        g, at = self._space.geometry, self._space.at
        if g.per_request:
            newest = list(enumerate(path))[-g.versions :]
            return [(at(row, (start + p) % g.versions), at(row, (start + i) % g.versions)) for i, p in newest]
        if g.stride == 1:
            return [(at(row, start + p), at(row, start + i)) for i, p in enumerate(path) if i != p]
        closing = [(i, p) for i, p in enumerate(path) if (start + i + 1) % g.stride == 0 and p < g.stage]
        return [(self._space.stage_at(row, p), at(row, (start + i) // g.stride)) for i, p in closing]
