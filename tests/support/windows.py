"""Forwards without an engine: hand-made windows, a KV, and a body that a test writes in place of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from byref.capture.base import Eager
from byref.contract import ForwardContext, Kind, Request, SamplingParams, StateMap, Window
from byref.contract.roles import TARGET, RoleSizing, Scratch, Sizing
from byref.contract.specs import PoolSpec
from byref.engine.batch import RowBatch
from byref.engine.forwards import Forwards, Unit
from byref.kv import ContiguousKV

Body = Callable[[ForwardContext], object]


def sizing_of(
    pools: Sequence[PoolSpec] = (), *, padded: bool = False, roles: Sequence[str] = (TARGET,), **changes
) -> Sizing:
    """A small engine's sizes; `padded` forwards have the shapes of captured ones."""
    values = {
        "device": torch.device("cpu"),
        "dtype": torch.float32,
        "max_requests": 5,
        "max_rows": 40,
        "max_context": 60,
        "max_drafts": 6,
        "kv_tokens": 400,
        "captured": frozenset(Kind) if padded else frozenset(),
        "roles": tuple(RoleSizing(name, i, 10, 0) for i, name in enumerate(roles)),
        "pools": tuple(pools),
    }
    return Sizing(**(values | changes))


class Rows:
    """Runs bodies over windows, as the engine runs models."""

    def __init__(self, sizing: Sizing) -> None:
        self.sizing, self.kv = sizing, ContiguousKV(sizing)
        self._body: Body = lambda _: None
        units = [self._unit(role.name, role.id) for role in sizing.roles]
        self.forwards = Forwards(units, self.kv.refill, Eager(), sizing)

    def run(self, windows: Sequence[Window], body: Body, role: str = TARGET) -> object:
        """What `body(ctx)` returns within one forward of `windows`."""
        found = []
        self._body = lambda ctx: found.append(body(ctx))
        self.forwards(role, windows)
        return found[0]

    def _unit(self, name: str, number: int) -> Unit:
        states, batch = StateMap(name), RowBatch(self.sizing)
        for state in (batch, Scratch(), self.kv):
            states.attach(state, "core")
        states.seal()
        return Unit(name, number, self._model, batch, states, None)

    def _model(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        self._body(ctx)
        return torch.zeros(ctx.logit_rows, 10)


def request(name: str, row: int, prompt: int = 8, new: int = 8) -> Request:
    """A request that has its row and computed nothing."""
    params = SamplingParams(max_tokens=new)
    return Request(name, (1,) * prompt, params, 0, row=row, tokens=[1] * prompt, lengths={TARGET: 0})
