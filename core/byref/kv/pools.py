"""Pools on contiguous extents. Knows where a request's entries lie; must not know what they mean."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH, SCRATCH, Sizing
from byref.contract.specs import PoolSpec
from byref.kv.extents import Extents


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a pool's extents are laid out: the entries of a per-token pool or the versions of a per-request one,
    then a stage of one slot per row of a verify window, which strided pools need for trees."""

    role: str
    per_request: bool
    stride: int
    versions: int
    window: int | None
    stage: int

    @classmethod
    def of(cls, spec: PoolSpec, sizing: Sizing) -> Geometry:
        """The geometry of `spec`'s pool."""
        stage = sizing.max_drafts + 1 if spec.stride > 1 else 0
        return cls(spec.role, spec.per == "request", spec.stride, spec.versions, spec.window, stage)

    def entries(self, tokens: int) -> int:
        """Slots, without the stage, of a request of so many tokens."""
        return self.versions if self.per_request else -(-tokens // self.stride)


class Space:
    """The extents that all pools of one geometry share, and their device table by request row."""

    def __init__(self, geometry: Geometry, sizing: Sizing) -> None:
        self.geometry = geometry
        requests = sizing.max_requests
        tokens = (
            requests * geometry.versions if geometry.per_request else -(-sizing.kv_tokens // geometry.stride) + requests
        )
        self.extents = Extents(tokens + requests * geometry.stage)
        self.held: dict[int, tuple[int, int]] = {}
        """By request row: base of its extent, and entries in it (the stage follows them)."""
        self._bases = torch.zeros(requests + 1, dtype=torch.int64, device=sizing.device)
        self._stages = torch.zeros_like(self._bases)

    def take(self, row: int, tokens: int) -> bool:
        """An extent for request row `row`; False where none is free."""
        entries = self.geometry.entries(tokens)
        base = self.extents.take(entries + self.geometry.stage)
        if base is None:
            return False
        self.held[row] = base, entries
        self._bases[row], self._stages[row] = base, base + entries
        return True

    def give(self, row: int) -> None:
        """Take the row's extent back."""
        self.extents.give(self.held.pop(row)[0])
        self._bases[row] = self._stages[row] = 0

    def bases(self) -> Tensor:
        """[request rows] int64: first slot of each extent, lent."""
        return self._bases

    def stages(self) -> Tensor:
        """[request rows] int64: first slot of each stage, lent."""
        return self._stages


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


class ContiguousPool:
    """One tensor of slots; each request has one extent. Slot 0 is the sink.

    Per-token: entry e lies at base + e. Per-request: the state after cache index t lies at
    base + t % versions, so the newest `versions` states are there and a chain needs no copy. Nothing is
    overwritten by age, but `slots` hides what the contract does not promise, so nobody comes to rely on it.
    """

    def __init__(self, spec: PoolSpec, space: Space, bounds: Bounds, sizing: Sizing) -> None:
        codec = spec.codec
        self._spec, self._space, self._bounds = spec, space, bounds
        # Not zeroed: untouched pages then cost no memory, and nothing may depend on what a free slot holds.
        self._data = torch.empty(
            space.extents.capacity + 1,
            codec.width(spec.width) if codec else spec.width,
            dtype=codec.dtype if codec else spec.dtype,
            device=sizing.device,
        )
        self._data[0] = 0

    @property
    def spec(self) -> PoolSpec:
        return self._spec

    @property
    def space(self) -> Hashable:
        return self._space.geometry

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
            first, end, offset = before - g.versions, after, index % g.versions
        else:
            first = before // g.stride - g.window if g.window is not None else torch.zeros_like(before)
            end, offset = after // g.stride, index
        kept = (index >= first.clamp(min=0)) & (index < end)
        return torch.where(kept, self._space.bases()[rows] + offset, 0)

    def read(self, slots: Tensor) -> Tensor:
        flat = self._data.index_select(0, slots.reshape(-1))
        values = self._spec.codec.decode(flat) if self._spec.codec else flat
        return values.view(*slots.shape, self._spec.width)

    def _write_slots(self, ctx: ForwardContext) -> Tensor:
        """Padding rows, rows that close no entry and states that are not kept go to the sink."""
        batch, g = ctx.state(BATCH), self._space.geometry
        rows, index = batch.rows(ctx), batch.index(ctx)
        live, base = rows > 0, self._space.bases()[rows]
        if g.per_request:
            newest = index >= batch.lengths(ctx)[batch.request_of_row(ctx)] - g.versions
            return torch.where(live & newest, base + index % g.versions, 0)
        if g.stride == 1:
            return torch.where(live, base + index, 0)
        position = batch.positions(ctx)
        closes = (position + 1) % g.stride == 0
        return torch.where(live & closes, base + position // g.stride, 0)

    def _stage_slots(self, ctx: ForwardContext) -> Tensor:
        """Siblings of a tree may close the same entry, so a verify window's rows are kept apart until commit."""
        batch, g = ctx.state(BATCH), self._space.geometry
        rows = batch.rows(ctx)
        row = batch.index(ctx) - batch.offsets(ctx)[batch.request_of_row(ctx)]
        return torch.where((rows > 0) & (row < g.stage), self._space.stages()[rows] + row, 0)

    def keep(self, row: int, start: int, path: Sequence[int]) -> None:
        """Rows `path` of the window at `start` become cache indices start, start + 1, ..., here."""
        pairs = [(s, t) for s, t in self._moves(row, start, path) if s != t]
        if pairs:
            source, target = torch.tensor(pairs, device=self._data.device).unbind(1)
            self._data[target] = self._data[source]

    def _moves(self, row: int, start: int, path: Sequence[int]) -> list[tuple[int, int]]:
        g, (base, entries) = self._space.geometry, self._space.held[row]
        if g.per_request:
            newest = list(enumerate(path))[-g.versions :]
            return [(base + (start + p) % g.versions, base + (start + i) % g.versions) for i, p in newest]
        if g.stride == 1:
            return [(base + start + p, base + start + i) for i, p in enumerate(path)]
        closing = [(i, p) for i, p in enumerate(path) if (start + i + 1) % g.stride == 0 and p < g.stage]
        return [(base + entries + p, base + (start + i) // g.stride) for i, p in closing]

    def copy(self, source: int, target: int) -> None:
        """Give request row `target` the entries of request row `source`."""
        (start, size), (base, room) = self._space.held[source], self._space.held[target]
        n = min(size, room)
        self._data[base : base + n] = self._data[start : start + n]
