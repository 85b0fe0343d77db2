"""State objects: private tensors with one owner, a stable address and a reset. Knows nothing of the engine."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
S = TypeVar("S", bound="State")


class Key(Generic[S]):
    """Names one state of a forward, typed: `ctx.state(KEY)` returns an `S`. Compared by identity."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type: type[S]) -> None:
        self.name = name
        self.type = type

    def __repr__(self) -> str:
        return f"Key({self.name!r})"


class Lifetime(enum.Enum):
    """How long what a state holds stays valid. Core clears, never a plugin."""

    ENGINE = "engine"
    """Persistent buffers; `reset` is called once, between warm-up and capture."""
    ROUND = "round"
    """A target forward and the draft forwards that follow it; cleared at the next target forward."""
    FORWARD = "forward"
    """Cleared just before `prepare_forward` of every forward."""


class State:
    """What a plugin attaches to the forward context, by reference.

    Every tensor is a private attribute, allocated once, refilled in place, lent by a method for the
    length of a call and listed by `buffers()` so that a moved one is noticed before a replay.
    """

    key: ClassVar[Key[Any]]
    lifetime: ClassVar[Lifetime] = Lifetime.ENGINE
    roles: tuple[str, ...] | None = None
    """Names of the roles whose context carries this state; None is every role."""

    def buffers(self) -> Mapping[str, Tensor]:
        """The persistent tensors by name. Their addresses may not change after start."""
        return {}

    def clear(self) -> None:
        """Forget what belongs to one forward or round. Called by core as `lifetime` says."""

    def reset(self) -> None:
        """Forget what warm-up left. Called by core between warm-up and capture."""


class Memo(State):
    """Values computed at most once in a forward (or round), each under its own key.

    A subclass says whose it is by its `key`; core clears it. Source of the idea: the slot-mapping memo of
    TokenSpeed's DeepSeek-V4 backend, there cleared by every publisher by hand.
    """

    lifetime: ClassVar[Lifetime] = Lifetime.FORWARD

    def __init__(self) -> None:
        self._values: dict[Hashable, object] = {}

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The value under `key`, computed by `compute()` on first use since the last clear."""
        if key not in self._values:
            self._values[key] = compute()
        return cast(T, self._values[key])

    def clear(self) -> None:
        self._values.clear()
