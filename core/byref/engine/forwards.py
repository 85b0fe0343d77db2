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
from byref.contract.roles import KV, TARGET, Sizing
from byref.contract.state import Lifetime, State
from byref.contract.step import Window
from byref.engine.batch import RowBatch
from byref.engine.layout import Layout, lay_out

Prepare = Callable[[ForwardContext], None]


@dataclass(slots=True)
class Unit:
    """One role: its model, its batch and its states."""

    name: str
    id: int
    model: Model
    batch: RowBatch
    states: StateMap
    blank: Tensor | None
    """[rows, input width]: what idle forwards take for a hidden state; None if the model takes none."""
    hidden: Tensor | None = None
    """The persistent buffer that its forwards take their hidden state from, from the first one on."""

    def cleared(self, lifetime: Lifetime) -> tuple[State, ...]:
        """Its states of one lifetime."""
        return tuple(state for state in self.states.values() if state.lifetime is lifetime)

    def lasting(self) -> tuple[Tensor, ...]:
        """Buffers that one forward leaves to later ones, but for the KV's, where padding rows reach the sink only."""
        states = [state for state in self.states.values() if not isinstance(state, KV | RowBatch)]
        return tuple(buffer for state in states for buffer in state.buffers().values())


class Forwards:
    """`forward(role, windows, hidden)`: the one way to a model."""

    def __init__(self, units: Sequence[Unit], prepare: Prepare, capture: Capture, sizing: Sizing) -> None:
        self._units = {unit.name: unit for unit in units}
        self._prepare, self._capture, self._sizing = prepare, capture, sizing
        self._memos = {unit.name: unit.cleared(Lifetime.FORWARD) for unit in units}
        self._rounds = tuple({id(s): s for unit in units for s in unit.cleared(Lifetime.ROUND)}.values())
        self._lasting = {unit.name: unit.lasting() for unit in units}
        self._most_context = sizing.max_context + sizing.max_drafts
        self._placed: dict[str, int] = {}
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
            hidden: for models that take one, the caller's persistent buffer [most rows, input width]. Its owner
                refills it in `prepare_forward`, row by row, from `Batch.from_row`.
            draft_step: counts a drafter's forwards of one round.
        """
        began = time.perf_counter()
        unit = self._units[role]
        layout = lay_out(windows, self._sizing.captured, self._most_context)
        ctx = self._context(unit, layout, draft_step)
        body = partial(self._body, unit, ctx, _hidden(unit, hidden, bool(windows)))
        if role == TARGET:
            for state in self._rounds:
                state.clear()
        if self._capture.wants(ctx):
            unit.batch.fill((), layout, {})
            # It runs between the forwards of a live round: what those leave for the next may not become padding.
            kept = [buffer.clone() for buffer in self._lasting[role]]
            self._capture.record(ctx, body)
            for buffer, before in zip(self._lasting[role], kept, strict=True):
                buffer.copy_(before)
        picked = unit.batch.fill(windows, layout, self._placed)
        self._placed = layout.place(windows)
        logits = self._capture.run(ctx, body)
        logits = logits[: len(picked)] if len(picked) == 0 or picked[-1] == len(picked) - 1 else logits[picked]
        self.seconds += time.perf_counter() - began
        return logits

    def warm_up(self) -> None:
        """One idle forward of every role, a reset of every state, and capturing begins."""
        for name in self._units:
            self(name, ())
        for unit in self._units.values():
            for state in unit.states.values():
                state.reset()
        self._capture.begin()

    def _context(self, unit: Unit, layout: Layout, draft_step: int) -> ForwardContext:
        """The only place that builds a context."""
        return ForwardContext(
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

    def _body(self, unit: Unit, ctx: ForwardContext, hidden: Tensor | None) -> Tensor:
        """What is captured and replayed."""
        for memo in self._memos[unit.name]:
            memo.clear()
        self._prepare(ctx)
        batch = unit.batch
        return unit.model(batch.ids(ctx), batch.positions(ctx), None if hidden is None else hidden[: ctx.rows], ctx)


def _hidden(unit: Unit, hidden: Tensor | None, live: bool) -> Tensor | None:
    """The hidden input of a forward: always the same buffer, so that a captured forward reads the right one."""
    if unit.blank is None:
        if hidden is not None:
            raise PluginError(f"the model of role {unit.name!r} takes no hidden state", hint="pass none")
        return None
    if not live:
        return unit.blank
    if hidden is None:
        raise PluginError(
            f"the model of role {unit.name!r} takes a hidden state, and none is given", hint="pass a buffer"
        )
    unit.hidden = hidden if unit.hidden is None else unit.hidden
    if unit.hidden.data_ptr() != hidden.data_ptr():
        raise PluginError(
            f"the hidden state of role {unit.name!r} moved", hint="pass one persistent buffer, refilled in place"
        )
    return hidden
