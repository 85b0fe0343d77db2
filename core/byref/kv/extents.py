"""Contiguous extents: first-fit allocation, and the space of pools on them. Knows slots and request rows, no token."""

from __future__ import annotations

import torch
from torch import Tensor

from byref.contract.roles import Sizing
from byref.kv.pools import Geometry, Space


class Extents:
    """Hands out [base, base + size) of `capacity` slots; slot 0 is never handed out (it is the sink)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._taken: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Slots handed out."""
        return sum(self._taken.values())

    def take(self, size: int) -> int | None:
        """The base of a free extent, the lowest there is; None when none is wide enough."""
        base = 1
        for start, length in sorted(self._taken.items()):
            if start - base >= size:
                break
            base = start + length
        if base + size > self.capacity + 1:
            return None
        self._taken[base] = size
        return base

    def give(self, base: int) -> None:
        """Take an extent back."""
        del self._taken[base]


class ExtentSpace(Space):
    """One extent per request row: its entries, then its stage."""

    def __init__(self, geometry: Geometry, sizing: Sizing) -> None:
        self.geometry = geometry
        requests, stride = sizing.max_requests, geometry.stride
        entries = requests * geometry.versions if geometry.per_request else -(-sizing.kv_tokens // stride) + requests
        self.extents = Extents(entries + requests * geometry.stage)
        self.slots = self.extents.capacity + 1
        self.held: dict[int, tuple[int, int]] = {}
        """By request row: base of its extent, and entries in it."""
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

    def copies(self, source: int, target: int) -> list[tuple[int, int]]:
        """Slot pairs that give request row `target` the entries of request row `source`."""
        (start, entries), (base, room) = self.held[source], self.held[target]
        return [(start + i, base + i) for i in range(min(entries, room))]

    def place(self, rows: Tensor, entry: Tensor) -> Tensor:
        return self._bases[rows] + entry

    def stage(self, rows: Tensor, row: Tensor) -> Tensor:
        return self._stages[rows] + row

    def at(self, row: int, entry: int) -> int:
        return self.held[row][0] + entry

    def stage_at(self, row: int, window_row: int) -> int:
        return sum(self.held[row]) + window_row

    def bases(self) -> Tensor:
        """[request rows] int64: first slot of each extent, lent."""
        return self._bases

    def stages(self) -> Tensor:
        """[request rows] int64: first slot of each stage, lent."""
        return self._stages
