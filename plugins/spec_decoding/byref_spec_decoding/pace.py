"""How many drafts pay: from measured acceptance and measured time. Knows counts and seconds; no token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

MEMORY: Final = 0.9
"""What is left of old evidence after each window of a request."""
PRIOR: Final = 2.0
"""Windows' worth of evidence that a new request takes over from all before it."""
TRUST: Final = 0.25
"""Share of a new measurement of time in the running mean."""
FIRST_PROBE: Final = 8
LAST_PROBE: Final = 128
"""Windows without drafts before one is tried again: it doubles each time, up to the last."""
HOPELESS: Final = 32
"""A fed drafter, which costs something without drafts too, is given up at waits longer than this."""


class Clock:
    """Seconds of a target's decode step by its number of rows. What was never measured is read off its neighbours,
    and beyond the largest measured it is taken to cost no more: so that it gets tried."""

    def __init__(self) -> None:
        self._met: set[int] = set()
        self._rows: list[int] = []
        self._seconds: dict[int, float] = {}

    def measure(self, rows: int, seconds: float) -> None:
        """One step of `rows` rows took so long. The first of each number says nothing: something may have been made
        for it. Where a machine gets slower it does so at every width, so half of each change moves all of them:
        what has not been tried for long does not stay behind."""
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

    def __call__(self, rows: int) -> float:
        """Seconds that a step of `rows` rows takes; 0 before anything was measured."""
        if not self._rows:
            return 0.0
        at = bisect_left(self._rows, rows)
        if at == len(self._rows):
            return max(self._seconds.values())
        high = self._rows[at]
        if high == rows or at == 0:
            return self._seconds[high]
        low = self._rows[at - 1]
        share = (rows - low) / (high - low)
        return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])


@dataclass(slots=True)
class Tally:
    """Drafts accepted and windows that ended with a rejection; the old count less and less."""

    accepted: float = 0.0
    rejected: float = 0.0

    def count(self, drafted: int, accepted: int) -> None:
        self.accepted = MEMORY * self.accepted + accepted
        self.rejected = MEMORY * self.rejected + (accepted < drafted)

    def rate(self, prior: float) -> float:
        """Chance that a draft whose predecessors stayed stays too."""
        return (self.accepted + PRIOR * prior) / (self.accepted + self.rejected + PRIOR)


@dataclass(slots=True)
class _Followed:
    tallies: dict[Hashable, Tally] = field(default_factory=dict)
    idle: int = 0
    """Windows in a row that could have had drafts and got none."""
    probe: int = FIRST_PROBE


@dataclass(frozen=True, slots=True)
class Offer:
    """A request that could have `most` drafts."""

    id: str
    most: int
    key: Hashable = None


class Pace:
    """Sets widths. One more draft pays while the tokens it brings per second exceed what the step brings so far.

    Args:
        adaptive: else every request gets all it may have.
        drafting: whether drafts cost forwards of their own.
    """

    def __init__(self, *, adaptive: bool, drafting: bool) -> None:
        self.adaptive, self.drafting = adaptive, drafting
        self.target = Clock()
        self._draft_seconds = 0.0
        self._rounds = 0
        self._followed: dict[str, _Followed] = {}
        self._all: dict[Hashable, Tally] = {}

    def drafted(self, steps: int, seconds: float) -> None:
        """So many draft forwards, one after the other, took so long. The first round says nothing, as in `Clock`."""
        self._rounds += bool(steps)
        if steps and self._rounds > 1:
            before = self._draft_seconds or seconds / steps
            self._draft_seconds = before + TRUST * (min(seconds / steps, 2 * before) - before)

    def verified(self, id: str, key: Hashable, drafted: int, accepted: int) -> None:
        """A window's fate."""
        followed = self._followed.setdefault(id, _Followed())
        followed.tallies.setdefault(key, Tally()).count(drafted, accepted)
        self._all.setdefault(key, Tally()).count(drafted, accepted)
        if accepted:
            followed.probe = FIRST_PROBE

    def forget(self, id: str) -> None:
        """The request is gone."""
        self._followed.pop(id, None)

    def rate(self, id: str, key: Hashable = None) -> float:
        """The chance that a draft of the request stays: its own evidence, where there is little that of all."""
        everyone = self._all[key].rate(0.8) if key in self._all else 0.8
        own = self._followed[id].tallies.get(key) if id in self._followed else None
        return own.rate(everyone) if own else everyone

    def hopeless(self, id: str) -> bool:
        """Whether drafts of the request did not pay for long, the ones tried meanwhile included."""
        return id in self._followed and self._followed[id].probe > HOPELESS

    def widths(self, offers: Sequence[Offer], rows: int) -> list[int]:
        """Drafts for each offer, in a step that has `rows` rows without any."""
        if not self.adaptive or self.target.empty:
            return [offer.most for offer in offers]
        widths = self._best(offers, rows)
        return [self._or_probe(offer, width) for offer, width in zip(offers, widths, strict=True)]

    def _best(self, offers: Sequence[Offer], rows: int) -> list[int]:
        """Add drafts one by one, the likeliest first, and keep the number at which tokens per second peak."""
        rates = [self.rate(offer.id, offer.key) for offer in offers]
        ladder = sorted(
            ((rate ** (n + 1), i, n + 1) for i, rate in enumerate(rates) for n in range(offers[i].most)),
            key=lambda rung: (-rung[0], rung[2]),
        )
        tokens, steps = float(rows), 0
        best, kept = tokens / max(self.target(rows), 1e-9), 0
        for added, (chance, _, n) in enumerate(ladder, start=1):
            tokens, steps = tokens + chance, max(steps, n)
            seconds = self.target(rows + added) + self.drafting * steps * self._draft_seconds
            if tokens / max(seconds, 1e-9) >= best:
                best, kept = tokens / max(seconds, 1e-9), added
        widths = [0] * len(offers)
        for _, i, n in ladder[:kept]:
            widths[i] = n
        return widths

    def _or_probe(self, offer: Offer, width: int) -> int:
        """What does not pay now is tried again after a while, and after ever longer ones."""
        if not offer.most:
            return 0
        followed = self._followed.setdefault(offer.id, _Followed())
        followed.idle = 0 if width else followed.idle + 1
        if followed.idle >= followed.probe:
            followed.idle, followed.probe = 0, min(2 * followed.probe, LAST_PROBE)
            return 1
        return width
