"""What runs the captured part of a forward. Knows contexts and callables, not what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from byref.contract.context import ForwardContext


class Capture(Protocol):
    """Runs a forward's body: directly, or by replaying what was captured under `ctx.key`."""

    def begin(self) -> None:
        """Warm-up is over and every state is reset."""
        ...

    def run(self, ctx: ForwardContext, body: Callable[[], Tensor]) -> Tensor:
        """The body's logits [logit rows, vocabulary]."""
        ...


class Eager:
    """Runs every body as it is."""

    def begin(self) -> None:
        return None

    def run(self, ctx: ForwardContext, body: Callable[[], Tensor]) -> Tensor:
        return body()
