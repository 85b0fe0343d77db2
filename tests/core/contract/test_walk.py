"""The walk that finds tensors, and what a state may hide from it."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import logging
import operator
import pathlib
import threading
import types
import weakref
from dataclasses import dataclass

import pytest
import torch

from byref.contract.plugin import NoOptions, Plugin
from byref.contract.requests import SamplingParams
from byref.contract.specs import PoolSpec
from byref.contract.state import Key, State
from byref.contract.walk import find_tensors

T = torch.zeros(2)


class Box:
    """An object of no particular kind."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Helper:
    """Not a State: what it hides, it still holds."""

    def __init__(self) -> None:
        self._private = T

    def lend(self) -> torch.Tensor:
        return self._private


class Slotted:
    __slots__ = ("__mangled", "free", "taken")

    def __init__(self) -> None:
        self.taken = T


class Mangled:
    __slots__ = ("__hidden",)

    def __init__(self) -> None:
        self.__hidden = T


class ClassHeld:
    table = T


class Computed:
    @property
    def rows(self) -> list[torch.Tensor]:
        return [torch.zeros(1)]


class Cached:
    @functools.cached_property
    def rows(self) -> torch.Tensor:
        return torch.zeros(1)


class Text(str):  # noqa: SLOT000  it takes attributes
    """Looks like a leaf."""


class Number(int):
    """Looks like a leaf."""


class Colour(enum.Enum):
    RED = "red"


class Loud(enum.Enum):
    TENSOR = torch.ones(1)


@dataclass
class Node:
    items: list[object]


class Table(dict[str, object]):
    """A dict with attributes."""


class Row(list[object]):
    """A list with attributes."""


def closure():
    kept = T
    return lambda: kept


def generator():
    kept = T
    yield 1
    yield kept


def advanced():
    run = generator()
    next(run)
    return run


def with_attribute(value, **attributes):
    vars(value).update(attributes)
    return value


def built(kind):
    """A class with a method that closes over a tensor."""
    kept = T
    return kind("Built", (), {"build": classmethod(lambda _: kept)})


@functools.lru_cache
def remembered(_: int) -> torch.Tensor:
    return torch.zeros(1)


remembered(1)

CARRIERS = {
    "tensor": lambda: T,
    "parameter": lambda: torch.nn.Parameter(torch.zeros(1)),
    "storage": T.untyped_storage,
    "module": lambda: torch.nn.Linear(1, 1),
    "list": lambda: [1, [2, T]],
    "tuple": lambda: (None, (T,)),
    "set": lambda: {T},
    "frozenset": lambda: frozenset({T}),
    "dict": lambda: {"a": {"b": T}},
    "dict key": lambda: {T: 1},
    "dict in dataclass in list": lambda: [Node([{"x": T}])],
    "mapping proxy": lambda: types.MappingProxyType({"a": T}),
    "deque": lambda: collections.deque([T]),
    "ordered dict": lambda: collections.OrderedDict(a=T),
    "default dict": lambda: collections.defaultdict(list, a=[T]),
    "chain map": lambda: collections.ChainMap({}, {"a": T}),
    "weak values": lambda: weakref.WeakValueDictionary({"a": T}),
    "weak reference": lambda: weakref.ref(T),
    "namespace": lambda: types.SimpleNamespace(a=T),
    "object": lambda: Box(a=Box(_b=T)),
    "helper with a private tensor": Helper,
    "bound method of a helper": lambda: Helper().lend,
    "method of a tensor": lambda: T.clone,
    "operator of a tensor": lambda: T.__add__,
    "method of a list": lambda: [T].pop,
    "slot": Slotted,
    "mangled slot": Mangled,
    "class attribute": ClassHeld,
    "class": lambda: ClassHeld,
    "property": Computed,
    "cached property": Cached,
    "dunder attribute": lambda: Box(__a__=T),
    "str with an attribute": lambda: with_attribute(Text("a"), t=T),
    "int with an attribute": lambda: with_attribute(Number(1), t=T),
    "dict with an attribute": lambda: with_attribute(Table(), t=T),
    "list with an attribute": lambda: with_attribute(Row(), t=T),
    "enum of tensors": lambda: Loud.TENSOR,
    "closure": closure,
    "default": lambda: lambda a=T: a,
    "keyword default": lambda: lambda *, a=T: a,
    "function with an attribute": lambda: with_attribute(lambda: None, t=T),
    "partial": lambda: functools.partial(print, [T]),
    "keyword of a partial": lambda: functools.partial(print, end=T),
    "partial method": lambda: functools.partialmethod(print, T),
    "class method that closes over one": lambda: built(type).build,
    "static method": lambda: staticmethod(closure()),
    "generator": advanced,
    "iterator": lambda: iter([T]),
    "map": lambda: map(str, [T]),
    "chain": lambda: itertools.chain([1], [T]),
    "cell": lambda: closure().__closure__[0],
    "cache of a function": lambda: remembered,
    "item getter": lambda: functools.partial(operator.getitem, {"a": T}),
    "exception": lambda: ValueError(T),
}


def cyclic():
    items: list[object] = [1]
    items.append(items)
    return items


PLAIN = {
    "numbers": lambda: [1, 2.0, 3j, True, None, "a", b"b", range(10**9)],
    "enum": lambda: Colour.RED,
    "module": lambda: torch,
    "dtype and device": lambda: (torch.float32, torch.device("cpu"), torch.Size([1])),
    "class": lambda: Helper,
    "function": lambda: find_tensors,
    "method": Box().__init__,
    "unset slot": lambda: Slotted.__new__(Slotted),
    "key": lambda: Key("plain", Plain),
    "cycle": cyclic,
    "options": NoOptions,
    "class of options": lambda: SamplingParams,
    "plugin": lambda: Plugin("mine", NoOptions()),
    "specs": lambda: [PoolSpec(name="keys", width=4, dtype=torch.float32)],
    "logger": lambda: logging.getLogger("byref.test"),
    "lock": threading.Lock,
    "path": pathlib.Path,
    "abstract": lambda: collections.ChainMap({"a": 1}),
}


class Plain(State):
    """A state of the ordinary kind."""

    def __init__(self, **attributes: object) -> None:
        self._buffer = torch.zeros(3)
        self.__dict__.update(attributes)

    def rows(self) -> torch.Tensor:
        return self._buffer


Plain.key = Key("plain", Plain)


@pytest.mark.parametrize("make", CARRIERS.values(), ids=CARRIERS)
def test_every_carrier_is_found_at_any_depth(make):
    assert list(find_tensors(make()))
    assert list(find_tensors([{"x": Box(y=make())}]))
    assert next(find_tensors(Plain(shown=make()), "Plain")).startswith("Plain.shown")


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_what_holds_no_tensor_shows_none(make):
    assert list(find_tensors(Plain(shown=make()))) == []


@pytest.mark.parametrize("make", CARRIERS.values(), ids=CARRIERS)
def test_a_state_may_hide_anything(make):
    assert list(find_tensors(Plain(_hidden=make(), other=Plain(_hidden=make())))) == []


def test_the_path_leads_to_the_tensor():
    state = Plain(table=[Node([{"x": T}])])
    assert list(find_tensors(state, "Plain")) == ["Plain.table[0].items[0]['x']"]


def test_every_tensor_is_named():
    assert sorted(find_tensors({"a": T, "b": [torch.ones(1)]}, "d")) == ["d['a']", "d['b'][0]"]


def test_a_long_chain_is_walked_to_its_end():
    chain: list[object] = [T]
    for _ in range(5000):
        chain = [chain]
    assert len(list(find_tensors(chain))) == 1


class Link:
    """Makes a list whenever it is asked, which is freed while the walk goes on."""

    def __init__(self, item: object, following: object) -> None:
        self.item, self.following = item, following

    @property
    def fresh(self) -> list[object]:
        return [torch.zeros(1)] if self.item == 0 else [self.item]


def test_values_made_on_the_way_are_not_mistaken_for_each_other():
    chain: object = None
    for item in range(20):
        chain = Link(item, chain)
    (path,) = find_tensors(chain)
    assert path.endswith(".following.fresh[0]")


def test_a_state_hides_no_item():
    class Bag(Plain, dict):
        pass

    bag = Bag()
    bag["x"] = T
    assert list(find_tensors(bag, "bag")) == ["bag['x']"]


def test_a_class_attribute_of_a_state_is_public_or_not_as_its_name_says():
    class Held(Plain):
        _hidden = T
        key = Key("held", Plain)

    class Shown(Plain):
        shown = T

    assert list(find_tensors(Held())) == []
    assert list(find_tensors(Shown(), "s")) == ["s.shown"]
