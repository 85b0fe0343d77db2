"""Seconds by a count, learned while running. Knows numbers only."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

TRUST: Final = 0.25
"""Share of a new measurement in the running mean."""
EXACT: Final = 8
"""Counts above it are told apart by their three leading bits."""


class Clock:
    """How long something takes by the number of its rows. What was never measured is read off its neighbours; beyond
    the largest measured the mean slope goes on, and with one measurement all cost the same: so that others get tried.
    """

    def __init__(self) -> None:
        self._met: set[int] = set()
        self._rows: list[int] = []
        self._seconds: dict[int, float] = {}

    def measure(self, rows: int, seconds: float) -> None:
        """It took so long with so many rows. The first of each number says nothing: something may have been made
        for it. Where a machine gets slower it does so at every number, so half of each change moves all of them:
        what has not been tried for long does not stay behind."""
        rows, seconds = coarse(rows), max(seconds, 1e-9)
        if rows not in self._met:
            self._met.add(rows)
        elif rows not in self._seconds:
            self._rows.insert(bisect_left(self._rows, rows), rows)
            self._seconds[rows] = seconds
        else:
            # One slow step among many (another process, a cache miss) may not decide: change is bounded.
            change = min(max(seconds / self._seconds[rows], 0.5), 2.0) ** (TRUST / 2)
            self._seconds = {n: change * old for n, old in self._seconds.items()}
            self._seconds[rows] *= change

    @property
    def empty(self) -> bool:
        """Whether nothing has been measured."""
        return not self._rows

    def knows(self, rows: int) -> bool:
        """Whether so many rows or fewer were measured."""
        return bool(self._rows) and self._rows[0] <= coarse(rows)

    def __call__(self, rows: int) -> float:
        """Seconds with so many rows; 0 before anything was measured."""
        if not self._rows:
            return 0.0
        at = bisect_left(self._rows, rows)
        if at == len(self._rows):
            return self._beyond(rows)
        high = self._rows[at]
        if high == rows or at == 0:
            return self._seconds[high]
        low = self._rows[at - 1]
        share = (rows - low) / (high - low)
        return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])

    def _beyond(self, rows: int) -> float:
        first, last = self._rows[0], self._rows[-1]
        top = max(self._seconds.values())
        slope = (top - self._seconds[first]) / (last - first) if last > first else 0.0
        return top + slope * (rows - last)


def coarse(rows: int) -> int:
    """The number, above `EXACT` rounded up to three leading bits: few are told apart, so that each is soon known."""
    step = 1 << max(rows.bit_length() - 3, 0) if rows > EXACT else 1
    return -(-rows // step) * step
