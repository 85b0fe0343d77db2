"""First-fit allocation of contiguous extents. Knows numbers only."""

from __future__ import annotations


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
