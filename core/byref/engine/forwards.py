"""One function builds and runs every forward of every role: target, draft, warm-up, capture, idle.

Knows the order of a forward's parts; must not know why it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from byref.capture.base import Capture
from byref.contract.context import ForwardContext, StateMap
from byref.contract.errors import PluginError
from byref.contract.model import Model
from byref.contract.roles import TARGET, Sizing
from byref.contract.state import Lifetime, State
from byref.contract.step import Window
from byref.engine.batch import RowBatch
from byref.engine.layout import lay_out

Prepare = Callable[[ForwardContext], None]


@dataclass(slots=True)
class Unit:
    """One role: its model, its batch and its states."""

    name: str
    id: int
    model: Model
    batch: RowBatch
    states: StateMap
    hidden: Tensor | None
    """[most rows, input width]: persistent input of models that take one."""

    def cleared(self, lifetime: Lifetime) -> tuple[State, ...]:
        """Its states of one lifetime."""
        return tuple(state for state in self.states.values() if state.lifetime is lifetime)


class Forwards:
    """`forward(role, windows, hidden)`: the one way to a model."""

    def __init__(self, units: Sequence[Unit], prepare: Prepare, capture: Capture, sizing: Sizing) -> None:
        self._units = {unit.name: unit for unit in units}
        self._prepare, self._capture, self._sizing = prepare, capture, sizing
        self._memos = {unit.name: unit.cleared(Lifetime.FORWARD) for unit in units}
        self._rounds = tuple({id(s): s for unit in units for s in unit.cleared(Lifetime.ROUND)}.values())
        self._most_context = sizing.max_context + sizing.max_drafts
        self.seconds = 0.0
        """Time spent in forwards; the runner resets it."""

    @torch.inference_mode()
    def __call__(
        self, role: str, windows: Sequence[Window], hidden: Tensor | None = None, draft_step: int = 0
    ) -> Tensor:
        """Run one forward and return the logits of the wanted rows, in the windows' order.

        Args:
            role: whose model.
            windows: the rows; none is an idle forward.
            hidden: [rows, input width], one row per row of the windows, for models that take one.
            draft_step: counts a drafter's forwards of one round.
        """
        began = time.perf_counter()
        unit = self._units[role]
        ctx, picked = self._context(unit, windows, hidden, draft_step)
        if role == TARGET:
            for state in self._rounds:
                state.clear()
        logits = self._capture.run(ctx, partial(self._body, unit, ctx))
        logits = logits[: len(picked)] if len(picked) == 0 or picked[-1] == len(picked) - 1 else logits[picked]
        self.seconds += time.perf_counter() - began
        return logits

    def capture(self) -> None:
        """Warm-up is over: start capturing."""
        self._capture.begin()

    def _context(
        self, unit: Unit, windows: Sequence[Window], hidden: Tensor | None, draft_step: int
    ) -> tuple[ForwardContext, list[int]]:
        """Fill the batch and build the context: the only place that does."""
        layout = lay_out(windows, self._sizing.captured, self._most_context)
        picked = unit.batch.fill(windows, layout)
        if (hidden is None) != (unit.hidden is None) and windows:
            wants = "takes no hidden state" if unit.hidden is None else "takes a hidden state, and none is given"
            raise PluginError(f"the model of role {unit.name!r} {wants}", hint="see `input_width` of its architecture")
        if hidden is not None and unit.hidden is not None:
            unit.hidden[: len(hidden)].copy_(hidden)
        ctx = ForwardContext(
            role=unit.id,
            kind=layout.kind,
            draft_step=draft_step,
            rows=layout.rows,
            requests=layout.requests,
            rows_per_request=layout.rows_per_request,
            logit_rows=layout.logit_rows,
            context_bound=layout.context_bound,
            states=unit.states,
        )
        return ctx, picked

    def _body(self, unit: Unit, ctx: ForwardContext) -> Tensor:
        """What is captured and replayed."""
        for memo in self._memos[unit.name]:
            memo.clear()
        self._prepare(ctx)
        batch = unit.batch
        hidden = unit.hidden[: ctx.rows] if unit.hidden is not None else None
        return unit.model(batch.ids(ctx), batch.positions(ctx), hidden, ctx)
