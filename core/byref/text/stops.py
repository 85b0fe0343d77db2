"""Finds stop strings in text that arrives in pieces. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Passes text on until a stop string is complete, and never emits a part of one.

    The stop string whose last character comes first wins; of several that end there, the longest. So the
    result does not depend on how the text was cut into pieces.

    Args:
        stops: the stop strings; empty ones are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece: the text that may be shown now, and whether a stop string is complete."""
        if self._stopped:
            return "", True
        self._held += text
        ends = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            self._stopped = True
            emit, self._held = self._held[: min(ends)[1]], ""
            return emit, True
        keep = self._begun()
        emit, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return emit, False

    def flush(self) -> str:
        """What was held back, now that no more text comes."""
        emit, self._held = self._held, ""
        return emit

    def _begun(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
