"""What a drafter is: the small interface that this plugin's own and third parties' implement. Knows no drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from byref.contract.plugin import NoOptions, RoleSource
from byref.contract.requests import Reason, Request
from byref.contract.roles import RunForward, Site, Sizing
from byref.contract.step import Step

if TYPE_CHECKING:
    from byref.contract.context import ForwardContext
    from byref.contract.specs import Spec
    from byref.contract.state import State
    from byref_spec_decoding.odds import Odds

KIND = "drafter"
"""The kind under which `register` announces a drafter: `registry.register(KIND, "mine", MyDrafter)`."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses of a request's coming tokens."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...] = ()
    """The tree: for each token the one it continues, -1 for the newest accepted one; empty is a chain."""
    key: Hashable = None
    """What its drafter expects acceptance to depend on, e.g. how long a match was; acceptance is kept per key."""
    odds: tuple[Odds, ...] = ()
    """What each token was drawn from, where `Want.odds` asks for it; empty for a greedy request."""

    def then(self, token: int, odds: Odds | None = None) -> Draft:
        """The chain with one more token."""
        return replace(self, tokens=(*self.tokens, token), odds=(*self.odds, odds) if odds else self.odds)

    @property
    def depth(self) -> int:
        """Tokens of its longest branch."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=len(self.tokens))

    def cut(self, most: int) -> Draft:
        """Its first `most` tokens."""
        if len(self.tokens) <= most:
            return self
        return Draft(self.tokens[:most], self.parents[:most], self.key, self.odds[:most])


@dataclass(frozen=True, slots=True)
class Want:
    """A request that goes on, and how many drafts of it may be verified next."""

    request: Request
    most: int
    odds: bool = False
    """Drafts are kept by rejection sampling: draw them from a distribution by noise that the target does not use
    (`byref_spec_decoding.odds.draw`), and hand that distribution over. Only a drafter that says `soft` is asked."""


@dataclass(frozen=True, slots=True)
class Round:
    """The moment after a step's tokens were accepted."""

    step: Step
    wants: Sequence[Want]
    """Every request of the step that goes on, `most` 0 included. One in the middle of its prompt wants none."""
    forward: RunForward


class Drafter(ABC):
    """Proposes drafts. Host side, but for what it binds.

    A subclass that is fed by forwards of its own sets `runs_forwards`: how many drafts pay is then settled before
    `propose`, from its cost too, and else after it.

    Args:
        options: its validated options.
        most: drafts of one window, the configured most.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    """Model of `[plugins.spec_decoding.options]`."""
    runs_forwards: ClassVar[bool] = False
    trees: ClassVar[bool] = False
    """Whether it can offer trees."""
    soft: ClassVar[bool] = False
    """Whether it draws from distributions and can hand these over, see `Want.odds`."""
    fed: ClassVar[bool] = False
    """Whether it must see every row of the target: it runs at width 0 too, or never again for the request."""

    def __init__(self, options: Any, most: int, *, tree: bool) -> None:
        self.options, self.most, self.tree = options, most, tree

    @classmethod
    def roles(cls, options: Any) -> Mapping[str, RoleSource]:
        """Models that it runs."""
        return {}

    def architectures(self) -> Mapping[str, str]:
        """Architectures that it brings: name -> `module:attribute`."""
        return {}

    def seen(self, specs: Sequence[Spec[Any]]) -> None:
        """Is shown every spec before anything is sized."""

    def states(self, sizing: Sizing) -> Sequence[State]:
        """Its states; made once. From then on it has its `sizing`."""
        self.sizing = sizing
        return ()

    def bind(self, spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
        """As the hook."""
        return None

    def bound(self, spec: Spec[Any], call: Callable[..., Any]) -> None:
        """Is shown every answer, whoever gave it, so that its model can share the target's weights."""

    def prepare_forward(self, ctx: ForwardContext) -> None:
        """As the hook."""

    def added(self, request: Request) -> None:
        """A request starts, or starts again after a preemption, with `request.tokens`."""

    def accepted(self, request: Request) -> None:
        """`request.tokens` has grown."""

    def released(self, request: Request, reason: Reason) -> None:
        """Forget the request; after a preemption it comes again."""

    def dropped(self, request: Request) -> None:
        """Nothing will be drafted for it any more: a fed drafter may leave its rows out from now on."""

    @abstractmethod
    def propose(self, round: Round) -> Mapping[str, Draft]:
        """Drafts by request id, at most as many each as are wanted; none for a request leaves it plain."""


class LookupDrafter(Drafter):
    """Base of drafters that look each request's draft up, without a forward."""

    def propose(self, round: Round) -> Mapping[str, Draft]:
        drafts = {want.request.id: self.look_up(want.request, want.most) for want in round.wants if want.most}
        return {id: draft for id, draft in drafts.items() if draft.tokens}

    @abstractmethod
    def look_up(self, request: Request, most: int) -> Draft:
        """At most so many tokens; none where nothing is found."""
