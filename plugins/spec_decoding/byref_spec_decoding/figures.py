"""What speculation did since the start. Knows counts; names nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Figures:
    """Over all requests."""

    windows: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """By position: windows in which that many drafts, one after the other, were accepted."""
    seconds: float = 0.0
    """Spent proposing."""

    def count(self, drafted: int, accepted: int) -> None:
        """A window with drafts was verified."""
        self.windows += 1
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_at += [0] * (accepted - len(self.accepted_at))
        for i in range(accepted):
            self.accepted_at[i] += 1

    def as_mapping(self) -> Mapping[str, float]:
        """By name, as `Plugin.figures` gives them."""
        windows = max(self.windows, 1)
        return {
            "windows": self.windows,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "mean_accepted": self.accepted / windows,
            **{f"accepted_at_{i}": n / windows for i, n in enumerate(self.accepted_at, start=1)},
            "seconds": self.seconds,
        }
