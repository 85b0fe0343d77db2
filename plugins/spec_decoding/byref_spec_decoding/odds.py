"""Rejection sampling: a draft stays with the chance min(1, p / q). Knows two distributions and the noise; no drafter.

Leviathan et al. 2022, "Fast Inference from Transformers via Speculative Decoding"; Chen et al. 2023. Draws are
functions of (seed, position, token), as in `byref.engine.noise`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from byref.contract.requests import Request
from byref.contract.step import LogitRows, RowInfo
from byref.engine.noise import gumbel, stream
from byref.engine.processing import scale, survivors

DRAWS: Final = 0x3C6EF372FE94F82B
"""Sets the noise that drafts are drawn with apart from the one that the target's tokens are drawn with."""
FATES: Final = 0x510E527FADE682D1
"""The same for the numbers that decide which drafts stay."""


@dataclass(frozen=True, slots=True)
class Odds:
    """The distribution that a draft was drawn from."""

    tokens: Tensor
    """[n] int64: the target's ids."""
    shares: Tensor
    """[n] fp32, of sum 1."""

    def of(self, token: int) -> float:
        """The share of a token."""
        return float(self.shares[self.tokens == token].sum())

    def taken_from(self, tokens: Tensor, shares: Tensor) -> Tensor:
        """What is left of `shares` [m] of ascending `tokens` [m] where this distribution is taken away."""
        at = torch.searchsorted(tokens, self.tokens).clamp_(max=len(tokens) - 1)
        here = tokens[at] == self.tokens
        return shares.index_add(0, at[here], self.shares[here], alpha=-1).clamp_(min=0)


def draw(tokens: Tensor, values: Tensor, request: Request, position: int) -> tuple[int, Odds]:
    """A draft out of softmax(values) [n], of the target's ids `tokens` [n], with noise that the target does not use."""
    noise = gumbel([stream(request.seed ^ DRAWS, position)], tokens)[0]
    return int(tokens[(noise + values).argmax()]), Odds(tokens, values.softmax(0))


def decide(rows: LogitRows, chosen: Sequence[int], odds: Mapping[str, Sequence[Odds]]) -> list[int]:
    """The token of each row: the draft after it where that stays, and where it goes one of what the draft's
    distribution left of the target's. Where no draft follows, or one without odds, it is the one chosen.

    Args:
        rows: of chains.
        chosen: the target's own token for each row.
        odds: by request, those of its drafts.
    """
    decided = list(chosen)
    for i, info in enumerate(rows.infos):
        of, n = odds.get(info.request.id, ()), len(info.drafts)
        if n < min(len(of), info.window.drafts) and chosen[i] >= 0:
            decided[i] = _decide(rows.processed(i), info, of[n], chosen[i])
    return decided


def _decide(logits: Tensor, info: RowInfo, odds: Odds, chosen: int) -> int:
    request, draft = info.request, info.window.tokens[info.row + 1]
    tokens, values = survivors(scale(logits, request.params.temperature), request.params)
    shares = values.softmax(0)
    if _uniform(request, info.position) * odds.of(draft) < float(shares[tokens == draft].sum()):
        return draft
    left = odds.taken_from(tokens, shares)
    if not left.any():  # by rounding alone: where p is nowhere above q, the two are the same
        return chosen
    noise = gumbel([stream(request.seed, info.position)], tokens)[0]
    return int(tokens[(left.log() + noise).argmax()])


def _uniform(request: Request, position: int) -> float:
    """In (0, 1)."""
    noise = gumbel([stream(request.seed ^ FATES, position)], torch.zeros(1, dtype=torch.int64))
    return float((-(-noise).exp()).exp())
