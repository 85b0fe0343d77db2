"""Finds every tensor that an object leads to. Knows what a `State` may hide, and nothing of the engine."""

from __future__ import annotations

import collections
import gc
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, cast

from byref.contract.state import State

Named = Iterator[tuple[str, object]]

_LEAVES = frozenset({str, bytes, int, float, complex, bool, range, type(None)})
"""Exactly these hold nothing else; a subclass may."""
_DOORS = ("__func__", "__self__", "__wrapped__", "func", "args", "keywords")
"""What bound methods, wrappers and partials hold, under the names a reader knows."""
_METHODS = (types.FunctionType, staticmethod, classmethod)
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_CACHES = ("_abc_impl",)
"""An abstract class remembers classes that it was asked about: they are not its own."""


def find_tensors(value: object, path: str = "") -> Iterator[str]:
    """The path of every tensor (or storage) that `value` leads to, at any depth; each once, by a shortest path.

    A `State` hides its private attributes and its methods (they are its own to lend); nothing else does:
    containers, objects, classes, closures, bound methods, weak references, generators, iterators and what
    else the garbage collector can follow are walked. Properties are read, but not those of what a property
    made (`Path.parent` has no end). Modules, and the globals of functions, are not walked.
    """
    import torch

    seen: dict[int, object] = {}  # the objects too: while they live, no other has their address
    todo = collections.deque([(path, value, False)])
    while todo:
        path, value, made = todo.popleft()
        if id(value) in seen or _is_leaf(value):
            continue
        seen[id(value)] = value
        if _is(value, torch.Tensor, torch.UntypedStorage):
            yield path
            continue
        todo.extend((path + name, child, made) for name, child in _held(value))
        if not made:
            todo.extend((path + name, child, True) for name, child in _computed(value))
        todo.extend((path + name, child, made) for name, child in _nameless(value))


def _is_leaf(value: object) -> bool:
    """Whether it is not walked: plain values, modules, and typing, whose caches know every class of the program."""
    typing = "typing" in (type(value).__module__, getattr(value, "__module__", None) if callable(value) else None)
    return type(value) in _LEAVES or _is(value, types.ModuleType) or typing


def _is(value: object, *kinds: type) -> bool:
    """As isinstance, but asks the type alone: an object may raise when it is asked for its class."""
    return issubclass(type(value), kinds)


def _held(value: Any) -> Named:
    """Items, attributes, slots and class attributes: what is there already, and has a name."""
    if _is(value, type):
        yield from _of_class(value)
    elif _is(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            yield from ((f".<closure {name}>", content) for content in gc.get_referents(cell))
        yield ".__defaults__", value.__defaults__
        yield ".__kwdefaults__", value.__kwdefaults__
        yield ".__dict__", value.__dict__
    else:
        yield from _items(value)
        yield from _read(value, _names(value))


def _items(value: Any) -> Named:
    if _is(value, Mapping):
        for key, item in _pairs(value):
            yield f".key({key!r})", key
            yield f"[{key!r}]", item
    elif _is(value, list, tuple, set, frozenset, collections.deque):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif _is(value, weakref.ReferenceType):
        yield "()", value()


def _pairs(value: Mapping[object, object]) -> list[tuple[object, object]]:
    try:
        return list(value.items())
    except Exception:  # it makes its items, and cannot: what it holds is found without a name
        return []


def _names(value: object) -> list[str]:
    """Of attributes that reading does not compute."""
    names = [name for _, attributes in _read(value, ["__dict__"]) for name in cast(dict[str, object], attributes)]
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
        names += [name for name, member in _own(cls) if not _is_descriptor(member)]
    doors = [] if _is(value, State) else [name for name in _DOORS if hasattr(type(value), name)]
    return doors + [name for name in names if _shown(value, name)]


def _computed(value: object) -> Named:
    """Properties and other descriptors; of what is no `State` its methods too, for what they close over."""
    if _is(value, type):
        return
    hidden = _METHODS if _is(value, State) else ()
    for cls in type(value).__mro__:
        read = [name for name, member in _own(cls) if _is_descriptor(member) and not _is(member, *hidden)]
        yield from _read(value, [name for name in read if _shown(value, name)])


def _nameless(value: object) -> Named:
    """What else the garbage collector sees. A function refers to its module's globals, a state hides the rest."""
    if _is(value, type) or _is(value, State, types.FunctionType):
        return
    yield from ((f".<{type(child).__name__}>", child) for child in gc.get_referents(value) if child is not type(value))


def _of_class(cls: type) -> Named:
    """What a class holds; of a `State`'s class only what is public, and no method."""
    hides = issubclass(cls, State)
    for base in cls.__mro__:
        for name, member in _own(base):
            if not (hides and (name.startswith("_") or _is_descriptor(member))):
                yield f".{name}", member


def _own(cls: type) -> Iterator[tuple[str, object]]:
    """Class attributes that somebody wrote."""
    if cls.__module__ != "builtins":
        members = vars(cls).items()
        yield from ((name, member) for name, member in members if name not in _CACHES and not _is(member, *_SLOTS))


def _is_descriptor(member: object) -> bool:
    return hasattr(type(member), "__get__")


def _shown(value: object, name: str) -> bool:
    """Whether the attribute is walked: of a state the public ones."""
    return name not in _CACHES and not name.startswith("_" if _is(value, State) else "__")


def _read(value: object, names: list[str]) -> Named:
    for name in dict.fromkeys(names):
        try:
            yield f".{name}", getattr(value, name)
        except Exception:  # an unset slot, or a property that cannot be read now: it shows no tensor
            continue
