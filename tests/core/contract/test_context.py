"""The context carries no tensor: its fields, what is attached to it, and the five fields that crept in elsewhere."""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from byref.contract.context import ForwardContext, Kind, StateMap, check_fields
from byref.contract.errors import ContextError, PluginError
from byref.contract.state import Key, State
from byref.contract.walk import find_tensors

T = torch.zeros(2)
FIELDS = ("req_to_page", "gather_ids", "draft_seq_lens_buf", "accept_lengths", "dsa_swa_slot_mapping")
"""The tensors that crept into TokenSpeed's context."""


class Lender(State):
    """A state as it should be."""

    def __init__(self, **attributes: object) -> None:
        self._rows = torch.zeros(3)
        self.__dict__.update(attributes)

    def rows(self) -> Tensor:
        return self._rows


class Other(State):
    """A second one."""

    def __init__(self) -> None:
        self._rows = torch.zeros(3)


LENDER, OTHER = Key("lender", Lender), Key("other", Other)
Lender.key, Other.key = LENDER, OTHER


class Small(int):
    """A subclass of int could carry anything."""


class Loud(enum.Enum):
    TENSOR = T


class Labelled(enum.Enum):
    A = 1

    def __init__(self, _: int) -> None:
        self.label = [T]


def context(states: StateMap | None = None, **changes: Any) -> ForwardContext:
    values: dict[str, Any] = {
        "role": 0,
        "kind": Kind.DECODE,
        "draft_step": 0,
        "rows": 4,
        "requests": 4,
        "rows_per_request": 1,
        "logit_rows": 4,
        "context_bound": 64,
        "states": states or StateMap("target"),
    }
    return ForwardContext(**values | changes)


def copy_with(*added: tuple[Any, ...], namespace: dict[str, Any] | None = None, **options: Any) -> type:
    """ForwardContext's dataclass again, with further fields."""
    own = [(f.name, f.type) for f in dataclasses.fields(ForwardContext)]
    options = {"frozen": True, "slots": True, "kw_only": True} | options
    made = dataclasses.make_dataclass("Copy", [*own, *added], namespace=namespace, **options)
    made.__module__ = ForwardContext.__module__  # its annotations are strings of that module
    return made


def test_subclassing_raises():
    with pytest.raises(TypeError, match="final"):

        class Wider(ForwardContext):
            pass


def test_setting_an_attribute_raises():
    ctx = context()
    with pytest.raises(dataclasses.FrozenInstanceError):
        ctx.rows = 5  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        ctx.gather_ids = T  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        object.__setattr__(ctx, "gather_ids", T)
    assert not hasattr(ctx, "__dict__")


def test_the_context_itself_and_a_copy_of_it_pass():
    check_fields(ForwardContext)
    check_fields(copy_with())
    check_fields(copy_with(("enabled", bool), ("phase", Kind)))


REFUSED = {
    "Any": Any,
    "object": object,
    "Callable": Callable[[], int],
    "bare Callable": Callable,
    "Tensor": Tensor,
    "Tensor or None": Tensor | None,
    "object or None": object | None,
    "int or None": int | None,
    "Optional": typing.Optional[int],  # noqa: UP045  the old spelling is refused as well
    "subclass of int": Small,
    "float": float,
    "str": str,
    "list": list,
    "list of int": list[int],
    "tuple of int": tuple[int, ...],
    "dict": dict[str, int],
    "State": State,
    "type variable": typing.TypeVar("X"),
    "ClassVar": typing.ClassVar[int],
    "InitVar": dataclasses.InitVar[int],
    "annotated int": typing.Annotated[int, T],
    "literal": typing.Literal[1],
    "enum of tensors": Loud,
    "enum whose members hold more": Labelled,
    "string that says Any": "Any",
    "string that says object": "object",
}


@pytest.mark.parametrize("annotation", REFUSED.values(), ids=REFUSED)
def test_a_field_that_could_hold_a_tensor_is_refused(annotation):
    with pytest.raises(ContextError, match="'extra'"):
        check_fields(copy_with(("extra", annotation)))


@pytest.mark.parametrize("annotation", ["Nowhere", "torch.Tensor", "int |"])
def test_an_annotation_that_does_not_resolve_is_refused(annotation):
    with pytest.raises(ContextError, match="does not resolve"):
        check_fields(copy_with(("extra", annotation)))


def test_the_context_class_leads_to_no_tensor():
    assert list(find_tensors(ForwardContext)) == []


def test_a_class_attribute_is_refused():
    with pytest.raises(ContextError, match="'memo'"):
        check_fields(copy_with(namespace={"memo": {}}))


@pytest.mark.parametrize("options", [{"frozen": False}, {"slots": False}], ids=str)
def test_a_context_that_takes_attributes_is_refused(options):
    with pytest.raises(ContextError, match="frozen and slotted"):
        check_fields(copy_with(**options))


def test_a_base_class_is_refused():
    class Base:
        __slots__ = ("hidden",)

    with pytest.raises(ContextError, match="Base"):
        check_fields(copy_with(bases=(Base,)))


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("annotation", [Tensor, Any, object | None, list, list[Tensor], "Any"], ids=str)
def test_none_of_the_five_fields_comes_back(name, annotation):
    with pytest.raises(ContextError, match=repr(name)):
        check_fields(copy_with((name, annotation)))


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("shown", [T, [T], {"x": (T,)}, [T].pop], ids=["tensor", "list", "dict", "call"])
def test_none_of_the_five_comes_back_on_a_state(name, shown):
    with pytest.raises(ContextError, match=rf"Lender\.{name}.*") as caught:
        StateMap("draft").attach(Lender(**{name: shown}), "byref-rival")
    assert "plugin byref-rival, role draft" in str(caught.value)
    StateMap("draft").attach(Lender(**{f"_{name}": shown}), "byref-rival")


@pytest.mark.parametrize("name", FIELDS)
def test_the_walk_finds_each_of_the_five_in_a_context(name):
    states = StateMap("target")
    state = Lender()
    states.attach(state, "late")
    states.seal()
    assert list(find_tensors(context(states))) == []
    setattr(state, name, {"x": [T]})  # after the check at attachment
    (path,) = find_tensors(context(states), "ctx")
    assert path.startswith("ctx.states")
    assert path.endswith(f".{name}['x'][0]")


@pytest.mark.parametrize("thing", [T, object(), {"x": 1}, Lender, None, print], ids=str)
def test_what_is_no_state_is_refused(thing):
    with pytest.raises(ContextError, match="not a State") as caught:
        StateMap("target").attach(thing, "rival")
    assert "plugin rival" in str(caught.value)
    assert isinstance(caught.value, PluginError)


def test_a_state_without_a_key_of_its_own_type_is_refused():
    class Bare(State):
        pass

    class Borrowed(State):
        key = OTHER

    for state in (Bare(), Borrowed()):
        with pytest.raises(ContextError, match="no key of its own type"):
            StateMap("target").attach(state, "rival")


def _look_up(self, name):
    return object.__getattribute__(self, name)


@pytest.mark.parametrize("method", ["__getattr__", "__getattribute__"])
def test_a_state_that_makes_up_attributes_is_refused(method):
    made = type("Made", (Lender,), {method: _look_up})
    with pytest.raises(ContextError, match=method):
        StateMap("target").attach(made(), "rival")


def test_a_state_that_is_a_module_is_refused():
    class Net(Lender, torch.nn.Module):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.weight = torch.nn.Parameter(T)

    with pytest.raises(ContextError):
        StateMap("target").attach(Net(), "rival")


def test_a_state_may_refer_to_another():
    states = StateMap("target")
    states.attach(Lender(other=Other()), "a")
    assert list(find_tensors(states)) == []


def test_states_are_found_by_key_and_in_order():
    states = StateMap("target")
    lender, other = Lender(), Other()
    states.attach(other, "b")
    states.attach(lender, "a")
    ctx = context(states)
    assert ctx.state(LENDER) is lender
    assert states.values() == (other, lender)
    with pytest.raises(ContextError, match="no state 'lender' in role target") as caught:
        ctx.state(Key("lender", Lender))
    assert "lender, other" in str(caught.value)


def test_a_taken_key_and_a_sealed_map_are_refused():
    states = StateMap("target")
    states.attach(Lender(), "a")
    with pytest.raises(ContextError, match="taken by Lender"):
        states.attach(Lender(), "b")
    states.seal()
    with pytest.raises(ContextError, match="at start"):
        states.attach(Other(), "b")
    assert len(states.values()) == 1


def test_the_key_is_every_field_but_the_map():
    one = context(StateMap("a"))
    assert one.key == context(StateMap("b")).key == (0, Kind.DECODE, 0, 4, 4, 1, 4, 64)
    names = [f.name for f in dataclasses.fields(ForwardContext) if f.name != "states"]
    changes = {name: Kind.IDLE if name == "kind" else 9 for name in names}
    assert len({context(**{name: value}).key for name, value in changes.items()} | {one.key}) == len(names) + 1
