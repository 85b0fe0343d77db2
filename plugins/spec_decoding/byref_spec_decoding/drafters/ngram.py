"""Prompt lookup: what followed the last tokens when they stood there before. Knows tokens only."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from byref.contract.requests import Reason, Request
from byref_spec_decoding.drafter import Draft, LookupDrafter


class NgramOptions(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `ngram`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shortest: int = Field(default=2, ge=1)
    """Tokens that must match, at least."""
    longest: int = Field(default=6, ge=1)
    """Tokens that are matched, at most."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest ({self.shortest}) may not exceed longest ({self.longest})")
        return self


class _History:
    """Where each run of tokens ended last, but for the run that ends now."""

    def __init__(self, options: NgramOptions) -> None:
        self._sizes = range(options.longest, options.shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def extend(self, tokens: list[int]) -> None:
        """Note the runs that end before the newest token: `tokens` has grown."""
        for end in range(self._seen, len(tokens) - 1):
            for size in self._sizes:
                if size <= end + 1:
                    self._ends[tuple(tokens[end + 1 - size : end + 1])] = end + 1
        self._seen = max(len(tokens) - 1, 0)

    def match(self, tokens: list[int]) -> tuple[int, int]:
        """(Index of the token after the latest longest match, how long that is); (0, 0) where nothing matches."""
        for size in self._sizes:
            at = self._ends.get(tuple(tokens[-size:]), 0) if size <= len(tokens) else 0
            if at:
                return at, size
        return 0, 0


class Ngram(LookupDrafter):
    """Prompt lookup decoding (Saxena 2023; the same idea in "Inference with Reference", Yang et al. 2023)."""

    Options = NgramOptions

    def __init__(self, options: NgramOptions, most: int, *, tree: bool) -> None:
        super().__init__(options, most, tree=tree)
        self._histories: dict[str, _History] = {}

    def added(self, request: Request) -> None:
        self._histories[request.id] = _History(self.options)

    def released(self, request: Request, reason: Reason) -> None:
        self._histories.pop(request.id, None)

    def look_up(self, request: Request, most: int) -> Draft:
        history, tokens = self._histories[request.id], request.tokens
        history.extend(tokens)
        at, size = history.match(tokens)
        if not size:
            return Draft(())
        # A match that reaches the end goes on in itself: a loop is continued as a loop.
        period = len(tokens) - at
        return Draft(tuple(tokens[at + i % period] for i in range(most)), key=size)
