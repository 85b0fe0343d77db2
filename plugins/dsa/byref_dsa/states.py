"""What sparse attention keeps between calls: a round's selection, a forward's slots. Knows no layer's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.errors import PluginError
from byref.contract.roles import BATCH, Sizing
from byref.contract.state import Key, Lifetime, Memo, State
from byref.engine.layout import most_rows

NOTHING = -1
"""Stands in a selection where a row sees fewer entries than it may select."""


class SlotMappings(Memo):
    """Slots that several layers of a forward share, each mapping under a key of its own: the kind of mapping, the space
    it is in, and what else it depends on."""

    key: ClassVar[Key[SlotMappings]]


class TopKShare(State):
    """The newest selection of one role: per row the entries that its attention sees, request-relative (a cache index,
    or the number of a compressed entry); NOTHING behind the last.

    A full layer holds one, the shared layers after it borrow it. It lives for a round: a draft step may go on with the
    selection of the step before, row by row.
    """

    key: ClassVar[Key[TopKShare]]
    lifetime: ClassVar[Lifetime] = Lifetime.ROUND

    def __init__(self, role: str, most: int, sizing: Sizing) -> None:
        self.roles = (role,)
        rows = most_rows(sizing.max_rows, sizing.max_requests, sizing.max_drafts)
        self._entries = torch.full((rows, most), NOTHING, dtype=torch.int64, device=sizing.device)
        self._captured = sizing.captured
        self._held = False

    def buffers(self) -> Mapping[str, Tensor]:
        return {"entries": self._entries}

    def clear(self) -> None:
        """A target forward begins another round: nothing is selected."""
        self._held = False

    def reset(self) -> None:
        self.clear()
        self._entries.fill_(NOTHING)

    def hold(self, entries: Tensor, ctx: ForwardContext) -> None:
        """Keep a full layer's selection, [rows, up to the most] int64."""
        own, width = self._entries[: ctx.rows], entries.shape[1]
        own[:, :width] = entries
        own[:, width:].fill_(NOTHING)
        self._held = True

    def carry(self, top_k: int, ctx: ForwardContext) -> None:
        """Each row goes on with the selection of the row that it continues. Rows of earlier draft steps and the row
        itself take the last places, one each: nobody has scored them."""
        self.check(ctx)
        batch, last = ctx.state(BATCH), top_k - ctx.draft_step
        own = self._entries[: ctx.rows]
        own.copy_(self._entries.index_select(0, batch.from_row(ctx)))
        if last >= 0:
            own[:, last] = batch.index(ctx)

    def lend(self, top_k: int, ctx: ForwardContext) -> Tensor:
        """[rows, top_k] int64, lent for one call."""
        self.check(ctx)
        return self._entries[: ctx.rows, :top_k]

    def check(self, ctx: ForwardContext) -> None:
        """Refuse to go on without a selection.

        Raises:
            PluginError: no full layer has made one in this round.
        """
        # A replay runs no Python: what is held cannot be told where forwards are captured.
        if not self._held and ctx.kind not in self._captured:
            raise PluginError(
                "a layer shares a selection, and none has been made in this round",
                where=f"role {ctx.states.role}, draft step {ctx.draft_step}",
                hint="the first sparse layer of a forward needs an indexer of its own",
            )


SlotMappings.key = Key("dsa.slots", SlotMappings)
TopKShare.key = Key("dsa.selection", TopKShare)
