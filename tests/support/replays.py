"""A capture that checks each replay: the same forward runs eagerly on the same memory, and everything must agree."""

from __future__ import annotations

import torch
from torch import Tensor

from byref.contract import ForwardContext
from byref.contract.roles import BATCH
from byref.engine import Engine


class Checked:
    """Wraps an engine's capture. `contexts` has every context that ran, by key."""

    def __init__(self, engine: Engine) -> None:
        self._forwards, self.inner = engine.parts.forwards, engine.parts.forwards._capture
        self._units = engine.parts.units
        self.contexts: dict[tuple, ForwardContext] = {}
        self.runs: list[ForwardContext] = []
        self._forwards._capture = self

    def begin(self) -> None:
        raise AssertionError("it wraps a capture that has begun")

    def wants(self, ctx: ForwardContext) -> bool:
        return self.inner.wants(ctx)

    def record(self, ctx: ForwardContext, body) -> None:
        assert not ctx.state(BATCH).rows(ctx).any(), "a recording sees padding rows only"
        self.inner.record(ctx, body)

    def run(self, ctx: ForwardContext, body) -> Tensor:
        before = self._copies()
        replayed = self.inner.run(ctx, body).clone()
        after = self._copies()
        for name, tensor in self._buffers().items():
            tensor.copy_(before[name])
        eager = body()
        self.contexts[ctx.key] = ctx
        self.runs.append(ctx)
        assert torch.equal(replayed, eager), f"{ctx}: the logits of the replay differ"
        for name, tensor in self._buffers().items():
            assert same(tensor, after[name]), f"{ctx}: the replay leaves another {name}"
        return replayed

    def _buffers(self) -> dict[str, Tensor]:
        states = [(unit.name, state) for unit in self._units for state in unit.states.values()]
        return {f"{role}/{state.key.name}/{name}": t for role, state in states for name, t in state.buffers().items()}

    def _copies(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._buffers().items()}


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, where NaN equals NaN."""
    return (
        torch.equal(a.nan_to_num(nan=12345.0), b.nan_to_num(nan=12345.0))
        if a.is_floating_point()
        else torch.equal(a, b)
    )
