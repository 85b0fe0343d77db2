"""Suffix decoding: what followed the last tokens, counted over this request and earlier outputs. Knows tokens only."""

from __future__ import annotations

from collections import deque
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from byref.contract.requests import Reason, Request
from byref_spec_decoding.drafter import Draft, LookupDrafter
from byref_spec_decoding.trie import Cursor, Trie, guess


class SuffixOptions(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `suffix`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shortest: int = Field(default=2, ge=1)
    """Tokens that must match, at least."""
    depth: int = Field(default=16, ge=2)
    """Tokens of a run that is counted: a match and what follows it."""
    likely: float = Field(default=0.2, ge=0.0, le=1.0)
    """A guess ends where the counts make it less likely than this."""
    remember: int = Field(default=20_000, ge=0)
    """Tokens of earlier outputs that are kept, at up to 4 KB each; 0 keeps none."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.shortest >= self.depth:
            raise ValueError(f"depth ({self.depth}) must exceed shortest ({self.shortest})")
        return self


class Suffix(LookupDrafter):
    """Drafts by frequency (SuffixDecoding, Oliaro et al. 2024). What this request said counts before what others did:
    the source whose guess is longer by its own counts is taken."""

    Options = SuffixOptions
    trees = True

    def __init__(self, options: SuffixOptions, most: int, *, tree: bool) -> None:
        super().__init__(options, most, tree=tree)
        self._own: dict[str, Cursor] = {}
        self._earlier = Trie(options.depth)
        self._outputs: deque[list[int]] = deque()

    def added(self, request: Request) -> None:
        self._own[request.id] = Cursor(Trie(self.options.depth))

    def released(self, request: Request, reason: Reason) -> None:
        known = self._own.pop(request.id, None) is not None
        if known and reason is not Reason.PREEMPTED and self._shares(request) and request.generated:
            self._remember(request.tokens[-request.generated :])

    def _shares(self, request: Request) -> bool:
        """Requests that the prefix cache keeps apart (a salt, an adapter) neither add to what is remembered nor draw
        from it: how fast a guess is accepted would tell one of another's output."""
        return self.options.remember > 0 and not request.cache_key

    def _remember(self, output: list[int]) -> None:
        """Add an output to what all requests draw from, and forget the oldest beyond the limit."""
        self._earlier.add(output)
        self._outputs.append(output)
        while len(self._outputs) > 1 and sum(map(len, self._outputs)) > self.options.remember:
            self._earlier.remove(self._outputs.popleft())

    def look_up(self, request: Request, most: int) -> Draft:
        own = self._own[request.id]
        own.extend(request.tokens)
        context = request.tokens[-self.options.depth :]
        found = [
            guess(trie, context, most, shortest=self.options.shortest, likely=self.options.likely, tree=self.tree)
            for trie in ((own.trie, self._earlier) if self._shares(request) else (own.trie,))
        ]
        best = max(found, key=lambda one: one.expected)
        parents = tuple(best.parents) if self.tree else ()
        return Draft(tuple(best.tokens), parents, key=(found.index(best), min(best.matched, 8)))
