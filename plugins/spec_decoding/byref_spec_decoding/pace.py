"""How many drafts pay: from measured acceptance and measured time. Knows counts and seconds; no token."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from byref_spec_decoding.clock import Clock

MEMORY: Final = 0.9
"""What is left of old evidence after each window of a request."""
PRIOR: Final = 2.0
"""Windows' worth of evidence that a new request takes over from all before it."""
FIRST_PROBE: Final = 8
LAST_PROBE: Final = 128
"""Windows without drafts before one is tried again: it doubles each time, up to the last."""
BUDGET: Final = 0.02
"""Share of the time that trying what does not seem to pay may take."""
SAVED: Final = 0.25
"""Seconds of it that may be saved up."""
GAIN: Final = 1.05
"""Drafts that do not promise so much more than none are within the noise of what is measured."""
HOPELESS: Final = 32
"""A fed drafter, which costs something without drafts too, is given up at waits longer than this."""


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
        self.plain, self.verifying, self.drafts = Clock(), Clock(), Clock()
        self._budget = SAVED
        self._trying = False
        self._followed: dict[str, _Followed] = {}
        self._all: dict[Hashable, Tally] = {}

    def stepped(self, rows: int, drafts: int, seconds: float) -> None:
        """A step that decodes, of so many rows of the target, drafts among them or none, took so long. The two kinds
        differ: attention may be much faster over one row of each request."""
        (self.verifying if drafts else self.plain).measure(rows, seconds)
        self._budget = min(self._budget + BUDGET * seconds, SAVED)

    def drafted(self, requests: int, steps: int, seconds: float, *, late: bool) -> None:
        """Drafts of so many requests, by so many forwards one after the other, took so long. Where the drafter was
        `late`, it first had to compute what it had missed: its time says nothing about others'."""
        if not late:
            self.drafts.measure(requests, seconds / steps)
        if self._trying:
            self._budget -= seconds

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
        if not self.adaptive:
            return [offer.most for offer in offers]
        if not self.plain.knows(rows):  # what a step takes without drafts is measured before any
            return [0] * len(offers)
        if self.drafting and self.drafts.empty:  # and what a drafting forward takes, before many
            return [min(offer.most, 1) for offer in offers]
        widths = self._best(offers, rows)
        self._trying = not any(widths)
        return [self._or_probe(offer, width, rows) for offer, width in zip(offers, widths, strict=True)]

    def _best(self, offers: Sequence[Offer], rows: int) -> list[int]:
        """Add drafts one by one, the likeliest first, and keep the number at which tokens per second peak."""
        rates = [self.rate(offer.id, offer.key) for offer in offers]
        ladder = sorted(
            ((rate ** (n + 1), i, n + 1) for i, rate in enumerate(rates) for n in range(offers[i].most)),
            key=lambda rung: (-rung[0], rung[2]),
        )
        tokens, steps, drawn = float(rows), 0, 0
        plain = best = tokens / max(self.plain(rows), 1e-9)
        kept = 0
        for added, (chance, _, n) in enumerate(ladder, start=1):
            tokens, steps, drawn = tokens + chance, max(steps, n), drawn + (n == 1)
            seconds = self._with(rows + added) + self.drafting * steps * self.drafts(drawn)
            if tokens / max(seconds, 1e-9) >= max(best, GAIN * plain):
                best, kept = tokens / max(seconds, 1e-9), added
        widths = [0] * len(offers)
        for _, i, n in ladder[:kept]:
            widths[i] = n
        return widths

    def _with(self, rows: int) -> float:
        """Seconds of a step with so many rows, drafts among them."""
        return max(self.plain(rows), self.verifying(rows))

    def _or_probe(self, offer: Offer, width: int, rows: int) -> int:
        """What does not pay now is tried again after a while, and after ever longer ones, while the budget lasts."""
        if not offer.most:
            return 0
        followed = self._followed.setdefault(offer.id, _Followed())
        followed.idle = 0 if width else followed.idle + 1
        if followed.idle >= followed.probe and self._budget > 0:
            self._budget -= max(self._with(rows + 1) - self.plain(rows), 0.0)
            followed.idle, followed.probe = 0, min(2 * followed.probe, LAST_PROBE)
            return 1
        return width
