"""State objects: private tensors with one owner, a stable address and a reset. Knows nothing of the engine."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
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


_LEAVES = (str, bytes, int, float, complex, bool, type(None), enum.Enum, type, types.ModuleType, Key)


def find_tensors(value: object, path: str = "") -> Iterator[str]:
    """Paths of every tensor reachable from `value`, at any depth.

    A `State` hides its private attributes (they are its own to lend); nothing else does: containers,
    dataclasses, objects, closures, partials and bound methods are all walked. Properties are read.
    """
    yield from _walk(value, path, set())


def _walk(value: object, path: str, seen: set[int]) -> Iterator[str]:
    import torch

    if isinstance(value, torch.Tensor):
        yield path
        return
    if isinstance(value, _LEAVES) or id(value) in seen:
        return
    seen.add(id(value))
    for name, child in _children(value):
        yield from _walk(child, f"{path}{name}", seen)


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, State):
        yield from _attributes(value, private=False)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f".key({key!r})", key
            yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
        yield from _attributes(value, private=True)
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            yield f".<closure {name}>", _cell(cell)
        yield ".__defaults__", value.__defaults__
        yield ".__kwdefaults__", value.__kwdefaults__
        yield ".__dict__", value.__dict__
    elif isinstance(value, types.MethodType):
        yield ".__func__", value.__func__
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    else:
        yield from _attributes(value, private=True)


def _cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell: the name is not assigned yet
        return None


def _attributes(value: object, *, private: bool) -> Iterator[tuple[str, object]]:
    """Instance attributes, slots, properties, and class attributes of a class written by a plugin."""
    names = dict.fromkeys(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.update(dict.fromkeys((slots,) if isinstance(slots, str) else slots))
        if cls.__module__ != "builtins":
            names.update(dict.fromkeys(name for name, member in vars(cls).items() if _may_hold(member)))
    for name in names:
        if name.startswith("__") or (name.startswith("_") and not private):
            continue
        try:
            yield f".{name}", getattr(value, name)
        except Exception:  # an unset slot, or a property that cannot be read now: it shows no tensor
            continue


def _may_hold(member: object) -> bool:
    plain = (types.FunctionType, staticmethod, classmethod, types.MemberDescriptorType, types.GetSetDescriptorType)
    return not isinstance(member, (*plain, *_LEAVES))
