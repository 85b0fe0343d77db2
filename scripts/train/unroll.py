"""What training and measuring a drafting head share: its steps, each fed by the one before. Knows no head."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from train.layers import Chain

STEPS = 3


class Head(Protocol):
    """A drafting head."""

    def begin(self, taps: Tensor) -> Tensor:
        """The first step's hidden state of what is tapped from the target."""
        ...

    def __call__(self, hidden: Tensor, tokens: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        """One step: the hidden state of each row and the token after it -> the next hidden state, logits."""
        ...

    def choose(self, teacher: Tensor) -> Tensor:
        """The target's logits at the ids that the head's logits stand for."""
        ...

    def ids(self, logits: Tensor) -> Tensor:
        """The target's id of each row's likeliest token."""
        ...


def distil(head: Head, taps: Tensor, tokens: Tensor, teacher: Tensor, steps: int = STEPS) -> Tensor:
    """Mean cross entropy of the head's steps to the target's own distribution, in nats.

    taps [batch, length, any] and teacher [batch, length, vocabulary] are the target's over tokens [batch, length].
    Row t of step s reads token t + 1 + s and answers for token t + 2 + s, as while drafting.
    """
    rows = tokens.shape[1] - steps
    hidden, chain = head.begin(taps[:, :rows]), Chain()
    total = torch.zeros(())
    for step in range(steps):
        seen = slice(1 + step, 1 + step + rows)
        hidden, logits = head(hidden, tokens[:, seen], chain)
        wanted = head.choose(teacher[:, seen].float()).softmax(dim=-1)
        total = total - (wanted * logits.float().log_softmax(dim=-1)).sum(-1).mean()
    return total / steps


@torch.no_grad()
def drafted(head: Head, taps: Tensor, tokens: Tensor, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """What the head drafts after each row, and from which logits: [batch, length - 1, steps] and one more dimension.

    Row t holds the drafts for tokens t + 2, t + 3, ... when tokens up to t + 1 are known and the target has run up to
    row t: the first step reads token t + 1, each further one the head's own token.
    """
    rows = tokens.shape[1] - 1
    hidden, chain, known = head.begin(taps[:, :rows]), Chain(), tokens[:, 1:]
    ids: list[Tensor] = []
    scores: list[Tensor] = []
    for _ in range(steps):
        hidden, logits = head(hidden, known, chain)
        known = head.ids(logits)
        ids.append(known)
        scores.append(logits)
    return torch.stack(ids, dim=2), torch.stack(scores, dim=2)


def drafts(head: Head, taps: Tensor, tokens: Tensor, steps: int = STEPS) -> Tensor:
    """The drafts of `drafted` alone."""
    return drafted(head, taps, tokens, steps)[0]
