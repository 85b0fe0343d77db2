"""A plugin that runs a draft module fed by the target's last hidden states, and keeps its logits. It drafts nothing
unless it is told to: what the module says is compared with an oracle, whatever the target accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from byref.contract import API_VERSION, Key, Plugin, PluginInfo, Request, RoleSource, State, Step, Window, hookimpl
from byref.contract.roles import BATCH, DRAFT, TARGET
from byref.contract.specs import TapSpec
from byref.contract.step import Wanted
from byref.engine.speculator import PlainSpeculator


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    architecture: str
    steps: int = 1
    """Draft forwards of a round."""
    point: str = "normed"
    overrides: dict[str, int] = {}
    drafting: bool = False
    """Whether the target verifies what the module says."""


class Hiddens(State):
    """Hidden states of the forward before, and those that the draft role's rows continue."""

    key: ClassVar[Key]
    roles = (TARGET, DRAFT)

    def __init__(self, rows: int, width: int, sizing) -> None:
        self._tapped = torch.zeros(rows, width, dtype=sizing.dtype, device=sizing.device)
        self._fed = torch.zeros_like(self._tapped)

    def buffers(self) -> Mapping[str, Tensor]:
        return {"tapped": self._tapped, "fed": self._fed}

    def take(self, hidden: Tensor) -> None:
        self._tapped[: len(hidden)].copy_(hidden)

    def feed(self, ctx) -> None:
        self._fed[: ctx.rows].copy_(self._tapped.index_select(0, ctx.state(BATCH).from_row(ctx)))

    def lend(self) -> Tensor:
        return self._fed


Hiddens.key = Key("fed.hiddens", Hiddens)


class FedSpeculator(State, PlainSpeculator):
    """Step 0 covers every row that the target computed and kept; each later step adds the row of the likeliest token."""

    key: ClassVar[Key]

    def __init__(self, plugin: Fed, hiddens: Hiddens) -> None:
        self._plugin, self._hiddens = plugin, hiddens
        self._drafted: dict[str, tuple[int, ...]] = {}

    def width(self, request: Request) -> Sequence[int]:
        return self._drafted.get(request.id, ()) if self._plugin.options.drafting else ()

    def propose(self, step: Step, forward) -> None:
        windows = [first(step, window) for window in step.plan.windows if window.request not in step.finished]
        windows = [window for window in windows if window.tokens]
        self._drafted = {window.request: () for window in windows}
        for number in range(self._plugin.options.steps):
            if not windows:
                return
            logits = iter(forward(DRAFT, windows, self._hiddens.lend(), number).clone())
            following = []
            for window in windows:
                rows = [next(logits) for _ in window.wanted_rows()]
                for i, row in enumerate(rows):
                    self._plugin.logits.append((window.request, window.start + i, number, row))
                request = step.requests[window.request]
                if number or window.end + 1 == len(request.tokens):
                    token = int(rows[-1].argmax())
                    self._drafted[window.request] += (token,)
                    following.append(after(window, token))
            windows = following


FedSpeculator.key = Key("fed.speculator", FedSpeculator)


def first(step: Step, window: Window) -> Window:
    """Row i has the hidden state at position i and token i + 1."""
    request, path = step.requests[window.request], step.outcome[window.request].path
    tokens = tuple(request.tokens[window.start + 1 : window.start + 1 + len(path)])
    return Window(
        request=window.request,
        row=window.row,
        role=DRAFT,
        start=window.start,
        tokens=tokens,
        wanted=Wanted.ALL,
        prompt=window.prompt,
        from_rows=path[: len(tokens)],
    )


def after(window: Window, token: int) -> Window:
    return replace(
        window, start=window.end, tokens=(token,), drafts=1, prompt=False, from_rows=(len(window.tokens) - 1,)
    )


class Fed(Plugin[Options]):
    """See the module. `logits`: request, position of the row, draft step, logits [vocabulary]."""

    info = PluginInfo(api_version=API_VERSION, requires=("kv.rewind",))
    Options = Options

    def __init__(self, name, options):
        super().__init__(name, options)
        self.logits: list[tuple[str, int, int, Tensor]] = []

    @hookimpl
    def register(self, registry):
        options = self.options
        registry.role(DRAFT, RoleSource(architecture=options.architecture, overrides=options.overrides))
        registry.drafts(max(options.steps, 1))

    @hookimpl
    def create_states(self, sizing):
        rows = 4 * max(sizing.max_rows, sizing.max_requests * (sizing.max_drafts + 1))
        self.hiddens = Hiddens(rows, sizing.role(DRAFT).hidden, sizing)
        return [self.hiddens, FedSpeculator(self, self.hiddens)]

    @hookimpl
    def bind(self, spec, site):
        if isinstance(spec, TapSpec) and spec.point == self.options.point:
            return lambda hidden, ctx: ctx.state(Hiddens.key).take(hidden)
        return None

    @hookimpl
    def prepare_forward(self, ctx):
        if ctx.states.role == DRAFT:
            ctx.state(Hiddens.key).feed(ctx)
