"""The per-forward context. Knows ints, enums and references to states; must never know a tensor."""

from __future__ import annotations

import enum
import typing
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar, cast, final

from byref.contract.errors import ContextError
from byref.contract.state import Key, State, find_tensors

S = TypeVar("S", bound=State)


class Kind(enum.Enum):
    """What the rows of a forward are."""

    PREFILL = "prefill"
    """Every window is part of a prompt."""
    DECODE = "decode"
    """Every window is the newest token of a request and its drafts."""
    MIXED = "mixed"
    """Some of both."""
    IDLE = "idle"
    """No live row: every row is padding. Warm-up and capture run it, and ranks with nothing to do."""


@final
class StateMap:
    """The states of one role, by key. Filled at start, then sealed; the same object in every forward."""

    __slots__ = ("_role", "_sealed", "_states")

    def __init__(self, role: str) -> None:
        self._role = role
        self._states: dict[Key[Any], State] = {}
        self._sealed = False

    @property
    def role(self) -> str:
        """The name of the role."""
        return self._role

    def attach(self, state: object, plugin: str) -> None:
        """Add a state under its own key.

        Raises:
            ContextError: it is not a `State`, has no key, has a public tensor at any depth, its key is
                taken, or the map is sealed; the plugin is named.
        """
        where = f"plugin {plugin}, role {self._role}"
        if not isinstance(state, State):
            raise ContextError(
                f"{type(state).__name__} cannot be attached to the forward context: it is not a State",
                where=where,
                hint="derive it from byref.contract.State and keep its tensors private",
            )
        key = getattr(type(state), "key", None)
        if not isinstance(key, Key) or not isinstance(state, key.type):
            raise ContextError(f"{type(state).__name__} has no key of its own type", where=where, hint="set `key = Key(...)`")
        tensors = list(find_tensors(state, type(state).__name__))
        if tensors:
            raise ContextError(
                f"a state may not show a tensor, and this one does: {', '.join(tensors)}",
                where=where,
                hint="make the attribute private and lend the tensor by a method",
            )
        if key in self._states:
            taken = type(self._states[key]).__name__
            raise ContextError(f"the key {key.name!r} is taken by {taken}", where=where, hint="disable one of the two plugins")
        if self._sealed:
            raise ContextError("states are attached at start, never later", where=where, hint="return it from create_states")
        self._states[key] = state

    def seal(self) -> None:
        """No state is attached after this."""
        self._sealed = True

    def get(self, key: Key[S]) -> S:
        """The state under `key`; a ContextError that lists the keys there are, otherwise."""
        try:
            return cast(S, self._states[key])
        except KeyError:
            have = ", ".join(sorted(k.name for k in self._states)) or "none"
            raise ContextError(
                f"no state {key.name!r} in role {self._role}",
                where=f"states there: {have}",
                hint="enable the plugin that owns it",
            ) from None

    def values(self) -> tuple[State, ...]:
        """Every state, in the order of attachment."""
        return tuple(self._states.values())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardContext:
    """Describes one forward. Built by one function of the engine; models only pass it on.

    Everything but the state map makes `key`: forwards with equal keys may share a captured graph, so
    device and bound code may branch on these fields and on nothing else.
    """

    role: int
    """Number of the role: 0 is the target."""
    kind: Kind
    draft_step: int
    """0 for the target and for a drafter's first forward of a round, then 1, 2, ..."""
    rows: int
    """Rows of the forward, padding included."""
    requests: int
    """Requests of the forward, padding included."""
    rows_per_request: int
    """Rows of each request where all have the same number (`rows == requests * rows_per_request`), else 0."""
    logit_rows: int
    """Rows that reach the vocabulary projection, padding included."""
    context_bound: int
    """No request of this forward has more cached tokens than this, the rows themselves included; bucketed."""
    states: StateMap = field(repr=False, compare=False)

    def __init_subclass__(cls, **kwargs: object) -> NoReturn:
        raise TypeError("ForwardContext is final: a plugin extends a forward by attaching a State, not by subclassing")

    @property
    def key(self) -> tuple[int | Kind, ...]:
        """Identifies the captured graph of this forward."""
        return (
            self.role,
            self.kind,
            self.draft_step,
            self.rows,
            self.requests,
            self.rows_per_request,
            self.logit_rows,
            self.context_bound,
        )

    def state(self, key: Key[S]) -> S:
        """The state of this forward's role under `key`, typed."""
        return self.states.get(key)


def check_fields(cls: type) -> None:
    """Refuse a context class with a field that could hold a tensor.

    Exactly `int`, `bool`, enums and `StateMap` are allowed: anything wider (Any, object, Callable, a
    union, a subclass of int, an annotation that does not resolve) could carry one.

    Raises:
        ContextError: naming the field and its annotation.
    """
    try:
        hints = typing.get_type_hints(cls)
    except Exception as cause:
        raise ContextError(f"an annotation of {cls.__name__} does not resolve: {cause}", where=cls.__qualname__) from cause
    for name in sorted({f.name for f in fields(cls)} | set(hints)):
        hint = hints.get(name)
        enumerated = isinstance(hint, type) and issubclass(hint, enum.Enum)
        if hint not in (int, bool, StateMap) and not enumerated:
            raise ContextError(
                f"the forward context may not have the field {name!r} of type {hint!r}",
                where=cls.__qualname__,
                hint="attach a State that owns it; allowed are int, bool, enums and the state map",
            )


check_fields(ForwardContext)
