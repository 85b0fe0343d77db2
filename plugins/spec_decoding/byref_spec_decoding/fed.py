"""Drafters that are fed by the target's hidden states: step 0 covers what the target computed, later steps a row each.

Knows windows, taps and the state; not what a head computes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from byref.contract.requests import Request
from byref.contract.roles import DRAFT, Site, Sizing
from byref.contract.specs import EmbedSpec, Spec, TapSpec
from byref.contract.step import Step, Wanted, Window
from byref_spec_decoding.drafter import Draft, Drafter, Round, Want
from byref_spec_decoding.rollout import follow, pick
from byref_spec_decoding.state import SpecForwardState

if TYPE_CHECKING:
    from byref.contract.context import ForwardContext
    from byref.contract.state import State


class FedDrafter(Drafter):
    """Base of heads over the target's hidden states. A subclass says which of them, and which of the head's own.

    Row i of the draft role has the hidden state at position i and the token after it.
    """

    runs_forwards = True
    fed = True
    own_tap = "last"
    """Where the head's own hidden state is tapped, which its next step is fed."""

    def __init__(self, options: Any, most: int, *, tree: bool) -> None:
        super().__init__(options, most, tree=tree)
        self.ids: Tensor | None = None
        """[draft vocabulary] int64: the target's ids of the head's tokens; None where they are the same."""
        self._embed: Callable[..., Any] | None = None

    @abstractmethod
    def column(self, spec: TapSpec) -> int | None:
        """From which column on a hidden state of the target is fed; None where it is not."""

    def states(self, sizing: Sizing) -> Sequence[State]:
        super().states(sizing)
        self.state = SpecForwardState(sizing.role(DRAFT).hidden, sizing)
        return [self.state]

    def bind(self, spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
        if not isinstance(spec, TapSpec):
            return None
        at = self.column(spec) if spec.role != DRAFT else (0 if spec.point == self.own_tap else None)
        if at is None:
            return None
        column = at
        return lambda hidden, ctx: self.state.take(column, hidden)

    def bound(self, spec: Spec[Any], call: Callable[..., Any]) -> None:
        if isinstance(spec, EmbedSpec) and spec.role != DRAFT:
            self._embed = call

    def prepare_forward(self, ctx: ForwardContext) -> None:
        if ctx.states.role == DRAFT:
            self.state.feed(ctx)

    def propose(self, round: Round) -> Mapping[str, Draft]:
        wants = {want.request.id: want for want in round.wants}
        windows = [first(round.step, want) for want in round.wants]
        drafted: dict[str, list[int]] = {id: [] for id in wants}
        for draft_step in range(max(1, *(want.most for want in round.wants))):
            if not windows:
                break
            logits = round.forward(DRAFT, windows, self.state.lend(), draft_step)
            windows = [window for window in windows if window.wanted is not Wanted.NONE]
            for window, row in zip(windows, logits, strict=True):
                request = wants[window.request].request
                drafted[request.id].append(pick(row, request, len(request.tokens) + draft_step, self.ids))
            going = [window for window in windows if len(drafted[window.request]) < wants[window.request].most]
            windows = [continued(window, drafted[window.request][-1]) for window in going]
        return {id: Draft(tuple(tokens)) for id, tokens in drafted.items() if tokens}


def first(step: Step, want: Want) -> Window:
    """Every row that the target computed and kept, with the token that follows it."""
    request: Request = want.request
    window = next(window for window in step.plan.windows if window.request == request.id)
    path = step.outcome[request.id].path
    tokens = tuple(request.tokens[window.start + 1 : window.start + 1 + len(path)])
    return replace(
        window,
        role=DRAFT,
        tokens=tokens,
        drafts=0,
        parents=(),
        wanted=Wanted.LAST if want.most else Wanted.NONE,
        from_rows=path,
    )


def continued(window: Window, token: int) -> Window:
    """The row of a draft, fed by the head's own row before."""
    return replace(follow(window, token), from_rows=(len(window.tokens) - 1,))
