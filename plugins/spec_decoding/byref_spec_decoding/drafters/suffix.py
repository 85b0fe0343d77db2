"""Suffix decoding: what followed the last tokens, counted over this request and earlier outputs. Knows tokens only."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from byref.contract.requests import Request
from byref_spec_decoding.drafter import Draft, Drafter, Round
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
    remember: int = Field(default=100_000, ge=0)
    """Tokens of earlier outputs that are kept; 0 keeps none."""


class Suffix(Drafter):
    """Drafts by frequency (SuffixDecoding, Oliaro et al. 2024). What this request said counts before what others did:
    the source whose guess is longer by its own counts is taken."""

    Options = SuffixOptions
    trees = True

    def __init__(self, options: SuffixOptions, most: int, *, tree: bool) -> None:
        super().__init__(options, most, tree=tree)
        self._own: dict[str, Cursor] = {}
        self._earlier = Trie(options.depth)
        self._outputs: deque[list[int]] = deque()
        self._running: dict[str, Request] = {}

    def added(self, request: Request) -> None:
        self._own[request.id] = Cursor(Trie(self.options.depth))
        self._running[request.id] = request

    def released(self, request: Request) -> None:
        self._own.pop(request.id, None)
        if self._running.pop(request.id, None) and self.options.remember and request.generated:
            self._remember(request.tokens[-request.generated :])

    def _remember(self, output: list[int]) -> None:
        """Add an output to what all requests draw from, and forget the oldest beyond the limit."""
        self._earlier.add(output)
        self._outputs.append(output)
        while len(self._outputs) > 1 and sum(map(len, self._outputs)) > self.options.remember:
            self._earlier.remove(self._outputs.popleft())

    def propose(self, round: Round) -> Mapping[str, Draft]:
        drafts = {}
        for want in round.wants:
            if want.most:
                draft = self._draft(want.request, want.most)
                if draft.tokens:
                    drafts[want.request.id] = draft
        return drafts

    def _draft(self, request: Request, most: int) -> Draft:
        own = self._own[request.id]
        own.extend(request.tokens)
        context = request.tokens[-self.options.depth :]
        found = [
            guess(trie, context, most, shortest=self.options.shortest, likely=self.options.likely, tree=self.tree)
            for trie in (own.trie, self._earlier)
        ]
        best = max(found, key=lambda one: one.expected)
        parents = tuple(best.parents) if self.tree else ()
        return Draft(tuple(best.tokens), parents, key=(found.index(best), min(best.matched, 8)))
