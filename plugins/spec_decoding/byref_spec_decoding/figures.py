"""What speculation did since the start. Knows counts; names nothing."""

from __future__ import annotations

from collections.abc import Mapping

from byref.engine.live import DraftFigures


class Figures(DraftFigures):
    """As a request's, over all requests."""

    __slots__ = ()

    def as_mapping(self) -> Mapping[str, float]:
        """By name, as `Plugin.figures` gives them."""
        windows = max(self.windows, 1)
        return {
            "windows": self.windows,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "mean_accepted": self.mean_accepted,
            **{f"accepted_at_{i}": n / windows for i, n in enumerate(self.accepted_at, start=1)},
            "seconds": self.seconds,
        }
