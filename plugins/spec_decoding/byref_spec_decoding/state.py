"""What passes from the target to a fed drafter: hidden states in persistent buffers. Knows rows; no request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from byref.contract.roles import BATCH, DRAFT, TARGET, Sizing
from byref.contract.state import Key, State
from byref.engine.layout import most_rows

if TYPE_CHECKING:
    from byref.contract.context import ForwardContext


class SpecForwardState(State):
    """The tapped hidden states of the forward before, and those that the rows of a draft forward continue.

    One buffer holds both, so that one gather over `Batch.from_row` refills the second half: an index below `rows` is a
    row that was tapped, `rows` more than a row's number is what that row was fed itself. Who accepts and how long each
    context is are `Batch`'s and the windows'; nothing here repeats it.

    Args:
        width: of what the draft model is fed.
        sizing: the engine's.
    """

    key: ClassVar[Key[SpecForwardState]]
    roles = (TARGET, DRAFT)

    def __init__(self, width: int, sizing: Sizing) -> None:
        self.rows = most_rows(sizing.max_rows, sizing.max_requests, sizing.max_drafts)
        self._hidden = torch.zeros(2 * self.rows, width, dtype=sizing.dtype, device=sizing.device)

    def buffers(self) -> Mapping[str, Tensor]:
        return {"hidden": self._hidden}

    def take(self, at: int, hidden: Tensor) -> None:
        """Keep a tapped hidden state [rows, its width] from column `at` on."""
        self._hidden[: hidden.shape[0], at : at + hidden.shape[1]].copy_(hidden)

    def feed(self, ctx: ForwardContext) -> None:
        """Refill what a draft forward is fed, from the rows that its rows continue."""
        before = self._hidden.index_select(0, ctx.state(BATCH).from_row(ctx))
        self._hidden[self.rows : self.rows + ctx.rows].copy_(before)

    def lend(self) -> Tensor:
        """[rows, width]: what the draft model is fed."""
        return self._hidden[self.rows :]


SpecForwardState.key = Key("spec_decoding.forward", SpecForwardState)
