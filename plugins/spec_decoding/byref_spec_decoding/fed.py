"""Drafters that are fed by the target's hidden states: step 0 covers what the target computed, later steps a row each.

Knows windows, taps and the state; not what a head computes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from byref.contract.roles import DRAFT, Site, Sizing
from byref.contract.specs import EmbedSpec, Spec, TapSpec
from byref.contract.step import Verdict, Wanted, Window
from byref_spec_decoding.drafter import Draft, Drafter, Round, Want
from byref_spec_decoding.growth import Chain, Growth, Tree
from byref_spec_decoding.state import SpecForwardState

if TYPE_CHECKING:
    from byref.contract.context import ForwardContext
    from byref.contract.state import State


class FedDrafter(Drafter):
    """Base of heads over the target's hidden states. A subclass says which of them, and which of the head's own.

    Row i of the draft role has the hidden state at position i and the token after it.
    """

    runs_forwards = True
    soft = True
    fed = True
    own_tap = "last"
    """Where the head's own hidden state is tapped, which its next step is fed."""
    branches = 1

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
        """Step 0 for every request, then as many steps as the widest chain or deepest tree takes."""
        computed = {window.request: window for window in round.step.plan.windows}
        windows = [first(computed[want.request.id], round.step.outcome[want.request.id], want) for want in round.wants]
        logits = round.forward(DRAFT, windows, self.state.lend(), 0)
        wanting = [want for want in round.wants if want.most]
        roots = [window for window in windows if window.wanted is not Wanted.NONE]
        grown = [(Tree if self.tree else Chain)(*pair, self) for pair in zip(wanting, roots, strict=True)]
        going = self._grow(grown, logits, 0)
        for draft_step in range(1, self.most):
            if not going:
                break
            logits = round.forward(DRAFT, [one.window() for one in going], self.state.lend(), 1)
            going = self._grow(going, logits, draft_step)
        return {one.request.id: one.draft() for one in grown}

    @staticmethod
    def _grow(grown: Sequence[Growth], logits: Tensor, draft_step: int) -> list[Growth]:
        """Hand each its rows of the logits; those that go on."""
        rows = iter(logits.split([len(one.window().wanted_rows()) if draft_step else 1 for one in grown]))
        return [one for one in grown if one.grow(next(rows), draft_step)]


def first(window: Window, verdict: Verdict, want: Want) -> Window:
    """Every row that the target computed and kept, with the token that follows it."""
    path, start = verdict.path, window.start
    return replace(
        window,
        role=DRAFT,
        tokens=tuple(want.request.tokens[start + 1 : start + 1 + len(path)]),
        drafts=0,
        parents=(),
        wanted=Wanted.LAST if want.most else Wanted.NONE,
        from_rows=path,
    )
