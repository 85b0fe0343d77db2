"""The per-forward context. Knows ints, enums and references to states; must never know a tensor."""

from __future__ import annotations

import enum
import types
import typing
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar, cast, final

from byref.contract.errors import ContextError
from byref.contract.state import Key, State
from byref.contract.walk import find_tensors

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
            ContextError: it is not a `State`, has no key, makes up attributes (`__getattr__`), has a public
                tensor at any depth, its key is taken, or the map is sealed; the plugin is named.
        """
        where = f"plugin {plugin}, role {self._role}"
        checked = _checked(state, where)
        key = type(checked).key
        if key in self._states:
            taken = type(self._states[key]).__name__
            raise ContextError(
                f"the key {key.name!r} is taken by {taken}", where=where, hint="disable one of the two plugins"
            )
        if self._sealed:
            raise ContextError(
                "states are attached at start, never later", where=where, hint="return it from create_states"
            )
        self._states[key] = checked

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


def _checked(state: object, where: str) -> State:
    """`state`, if it may be attached."""
    name = type(state).__name__
    if not isinstance(state, State):
        raise ContextError(
            f"{name} cannot be attached to the forward context: it is not a State",
            where=where,
            hint="derive it from byref.contract.State and keep its tensors private",
        )
    key = getattr(type(state), "key", None)
    if not isinstance(key, Key) or not isinstance(state, key.type):
        raise ContextError(f"{name} has no key of its own type", where=where, hint="set `key = Key(...)`")
    for method in ("__getattr__", "__getattribute__"):
        if getattr(type(state), method, None) not in (None, object.__getattribute__):
            raise ContextError(
                f"{name} has {method}: what it shows cannot be told", where=where, hint="name its attributes"
            )
    tensors = list(find_tensors(state, name))
    if tensors:
        raise ContextError(
            f"a state may not show a tensor, and this one does: {', '.join(tensors)}",
            where=where,
            hint="make the attribute private and lend the tensor by a method",
        )
    return cast(State, state)


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
    """Refuse a context class that could hold a tensor.

    Fields of exactly `int`, `bool`, an enum of plain values and `StateMap` are allowed: anything wider (Any,
    object, Callable, a union, a subclass of int, an annotation that does not resolve) could carry one. So
    could a base class, a class attribute, and an instance that takes further attributes.

    Raises:
        ContextError: naming the field and its annotation.
    """
    _check_shape(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as cause:
        raise ContextError(
            f"an annotation of {cls.__name__} does not resolve: {cause}", where=cls.__qualname__
        ) from cause
    for name in sorted({f.name for f in fields(cls)} | set(hints)):
        if not _plain(hint := hints.get(name)):
            raise ContextError(
                f"the forward context may not have the field {name!r} of type {hint!r}",
                where=cls.__qualname__,
                hint="attach a State that owns it; allowed are int, bool, enums and the state map",
            )


def _check_shape(cls: type) -> None:
    """Refuse a context class with room for anything but its fields."""
    where = cls.__qualname__
    if cls.__bases__ != (object,):
        raise ContextError(f"the forward context may not derive from {cls.__bases__}", where=where)
    if not cls.__dict__["__dataclass_params__"].frozen or cls.__dictoffset__:
        raise ContextError("the forward context must be frozen and slotted", where=where)
    for name, member in vars(cls).items():
        if not name.startswith("__") and not isinstance(
            member, (types.FunctionType, types.MemberDescriptorType, property)
        ):
            raise ContextError(f"the forward context may not have the class attribute {name!r}", where=where)


def _plain(hint: object) -> bool:
    """Whether a field of this annotation can hold nothing but a number, a name or the state map."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        held = [value for member in hint for value in vars(member).values()]
        return all(type(value) in (int, str) or value is hint for value in held)
    return hint is int or hint is bool or hint is StateMap


check_fields(ForwardContext)
