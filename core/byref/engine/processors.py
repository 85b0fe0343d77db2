"""Edits of one row of logits, before plugins see it: pure functions of (request, position, hypothetical prefix).

Knows sampling parameters; must not know neighbours, nor whether a token of the prefix is a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from byref.contract.requests import SamplingParams
from byref.contract.step import RowInfo

Processor = Callable[[Tensor, RowInfo], None]
"""Edits logits [vocabulary] fp32 in place."""


def processors(params: SamplingParams, end_ids: Collection[int]) -> tuple[Processor, ...]:
    """What the parameters ask for, in the order it is done in; empty where they ask for nothing.

    Args:
        params: of the request.
        end_ids: every token that ends its turn.
    """
    found: list[Processor] = []
    if params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty:
        found.append(Penalties(params))
    if params.logit_bias:
        found.append(Bias(params))
    if params.allowed_token_ids is not None:
        found.append(Allowed(params.allowed_token_ids))
    if params.banned_token_ids:
        found.append(Banned(params.banned_token_ids))
    if params.min_tokens and end_ids:
        found.append(Banned(end_ids, until=params.min_tokens))
    return tuple(found)


@dataclass(slots=True)
class Seen:
    """How often each token stands in a sequence. What it has counted is a memo: accepted tokens never change."""

    since: int
    """Counts from this position on."""
    upto: int = 0
    counts: Tensor = field(default_factory=lambda: torch.zeros(0))

    def count(self, info: RowInfo, logits: Tensor) -> Tensor:
        """[vocabulary] fp32: counts in the row's hypothetical prefix, lent."""
        known = info.position - len(info.drafts)
        if known < self.upto or not len(self.counts):
            self.upto, self.counts = self.since, torch.zeros_like(logits)
        if known > self.upto:
            self._add(self.counts, info.request.tokens[self.upto : known])
            self.upto = known
        if not info.drafts:
            return self.counts
        counts = self.counts.clone()
        self._add(counts, info.drafts)
        return counts

    @staticmethod
    def _add(counts: Tensor, tokens: Iterable[int]) -> None:
        ids = torch.tensor(tuple(tokens), device=counts.device)
        counts.index_add_(0, ids, torch.ones(len(ids), device=counts.device))


class Penalties:
    """Repetition as in CTRL (Keskar et al. 2019) and transformers, over prompt and generated tokens; then
    presence and frequency as OpenAI defines them, over generated tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._whole: Seen | None = None
        self._generated: Seen | None = None

    def __call__(self, logits: Tensor, info: RowInfo) -> None:
        params, by = self._params, self._params.repetition_penalty
        if by != 1:
            self._whole = self._whole or Seen(since=0)
            seen = self._whole.count(info, logits) > 0
            logits.copy_(torch.where(seen, torch.where(logits < 0, logits * by, logits / by), logits))
        if params.presence_penalty or params.frequency_penalty:
            self._generated = self._generated or Seen(since=len(info.request.prompt))
            counts = self._generated.count(info, logits)
            logits.sub_(counts, alpha=params.frequency_penalty)
            logits.sub_((counts > 0).to(logits.dtype), alpha=params.presence_penalty)


class Bias:
    """Adds to logits of single tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self._ids, self._values = torch.tensor(list(params.logit_bias)), torch.tensor(list(params.logit_bias.values()))

    def __call__(self, logits: Tensor, info: RowInfo) -> None:
        logits.index_add_(0, self._ids.to(logits.device), self._values.to(logits))


class Allowed:
    """Leaves these tokens, and no others."""

    def __init__(self, ids: Collection[int]) -> None:
        self._ids = torch.tensor(sorted(ids))

    def __call__(self, logits: Tensor, info: RowInfo) -> None:
        ids = self._ids.to(logits.device)
        kept = logits[ids]
        logits.fill_(float("-inf"))
        logits[ids] = kept


class Banned:
    """Takes these tokens away, always or until so many tokens have been generated."""

    def __init__(self, ids: Collection[int], until: int | None = None) -> None:
        self._ids, self._until = torch.tensor(sorted(ids)), until

    def __call__(self, logits: Tensor, info: RowInfo) -> None:
        if self._until is None or info.position - len(info.request.prompt) < self._until:
            logits[self._ids.to(logits.device)] = float("-inf")
