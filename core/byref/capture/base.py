"""What runs the captured part of a forward. Knows contexts and callables, not what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from byref.contract.context import ForwardContext, Kind
from byref.contract.errors import CaptureError
from byref.contract.state import Lifetime
from byref.plugins.binder import Bound

Body = Callable[[], Tensor]


class Capture(Protocol):
    """Runs bodies of forwards: directly, or by replaying what was recorded under `ctx.key`."""

    def begin(self) -> None:
        """Warm-up is over and every state is reset.

        Raises:
            CaptureError: a bound callable cannot be captured; it is named.
        """
        ...

    def wants(self, ctx: ForwardContext) -> bool:
        """Whether a forward of this key has to be recorded first. Its batch is then filled with padding only."""
        ...

    def record(self, ctx: ForwardContext, body: Body) -> None:
        """Record the body on padding rows, so that nothing of a live batch can be baked in."""
        ...

    def run(self, ctx: ForwardContext, body: Body) -> Tensor:
        """The body's logits [logit rows, vocabulary]; of a replay they are valid until the next of the same key."""
        ...


class Eager:
    """Runs every body as it is."""

    def begin(self) -> None:
        return None

    def wants(self, ctx: ForwardContext) -> bool:
        return False

    def record(self, ctx: ForwardContext, body: Body) -> None:
        raise NotImplementedError("nothing is recorded eagerly")

    def run(self, ctx: ForwardContext, body: Body) -> Tensor:
        return body()


def refuse_uncapturable(bound: Sequence[Bound], captured: frozenset[Kind]) -> None:
    """Name the first callable that cannot be captured in some captured kind of forward."""
    for one in bound:
        able = one.capturable
        if not isinstance(able, frozenset):
            able = frozenset(Kind) if able else frozenset()
        missing = captured - able
        if missing:
            what = f"{type(one.spec).__name__} {one.spec.name!r}"
            kinds = ", ".join(sorted(kind.value for kind in missing))
            raise CaptureError(
                f"the answer of {one.by} to {what} cannot be captured in {kinds} forwards",
                where=f"role {one.spec.role}, layer {one.spec.layer}",
                hint='bind another answer, or set [engine] capture = "off"',
            )


def clear_memos(ctx: ForwardContext) -> None:
    """What a recording memoised belongs to the recording: nobody may find it afterwards."""
    for state in ctx.states.values():
        if state.lifetime is Lifetime.FORWARD:
            state.clear()
