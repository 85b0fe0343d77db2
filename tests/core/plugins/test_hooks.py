"""Hooks: order, plain functions, chains, and who is blamed for what."""

import inspect
from dataclasses import replace

import pytest
import torch

from byref import Plugin, PluginInfo, hookimpl
from byref.config import load_config
from byref.contract.errors import CaptureError, PluginError, RequestError
from byref.contract.requests import Reason
from byref.contract.specs import PoolSpec, TapSpec
from byref.contract.state import State
from byref.plugins import PluginHost

NOW = PluginInfo(api_version=1)


def start(**classes):
    return PluginHost.load(load_config(overrides={"plugins.enable": []}, environ={}), classes).hooks


def plugin(requires=(), provides=(), **methods):
    """A plugin class with hooks of the given bodies."""
    info = PluginInfo(api_version=1, requires=requires, provides=provides)
    marked = {name: hookimpl(**getattr(method, "marks", {}))(method) for name, method in methods.items()}
    return type("Made", (Plugin,), {"info": info, **marked})


def note(self, step):
    step.append(self.name)


def note_rows(self, rows):
    rows.append(self.name)


def note_report(self, report):
    report.append(self.name)


def note_ctx(self, ctx):
    ctx.append(self.name)


NOTES = {
    "prepare_step": note,
    "commit": note,
    "prepare_forward": note_ctx,
    "adjust_logits": note_rows,
    "step_done": note_report,
}


def raises(self, *_):
    raise ValueError("from inside")


def first(method):
    method.marks = {"tryfirst": True}
    return method


def last(method):
    method.marks = {"trylast": True}
    return method


def order(hook="prepare_step", **classes):
    seen = []
    getattr(start(**classes), hook)(seen)
    return seen


def test_config_order_unless_required():
    assert order(b=plugin(prepare_step=note), a=plugin(prepare_step=note)) == ["b", "a"]
    needs = plugin(requires=("a",), prepare_step=note)
    assert order(b=needs, c=plugin(prepare_step=note), a=plugin(prepare_step=note)) == ["a", "b", "c"]


def test_a_requirement_holds_through_a_plugin_without_the_hook():
    top = plugin(requires=("middle",), prepare_step=note)
    middle = plugin(requires=("bottom",))
    assert order(top=top, middle=middle, bottom=plugin(prepare_step=note)) == ["bottom", "top"]


def test_tryfirst_and_trylast_within_what_requirements_allow():
    def early(self, step):
        step.append(self.name)

    def late(self, step):
        step.append(self.name)

    classes = {
        "a": plugin(prepare_step=last(late)),
        "b": plugin(prepare_step=note),
        "c": plugin(prepare_step=first(early)),
    }
    assert order(**classes) == ["c", "b", "a"]
    classes["c"] = plugin(requires=("a",), prepare_step=first(early))
    assert order(**classes) == ["a", "c", "b"]


def test_chains_follow_the_configuration_alone():
    needs = plugin(requires=("a",), adjust_logits=note_rows)
    assert order("adjust_logits", b=needs, a=plugin(adjust_logits=note_rows)) == ["b", "a"]


def test_what_a_forward_calls_are_plain_functions():
    hooks = start(a=plugin(prepare_forward=lambda self, ctx: None), b=plugin(prepare_forward=lambda self: None))
    assert all(inspect.isfunction(call) or inspect.ismethod(call) for call in hooks._prepare_forward)
    assert inspect.ismethod(hooks._prepare_forward[0]), "an implementation that takes everything is called directly"
    hooks.prepare_forward(object())


def test_fewer_arguments_and_defaults_are_adapted():
    seen = []
    hooks = start(
        a=plugin(request_released=lambda self, reason: seen.append(reason)),
        b=plugin(request_released=lambda self, request=None, unknown=3: seen.append((request, unknown))),
        c=plugin(request_released=lambda self: seen.append("called")),
    )
    hooks.request_released("r", Reason.STOP)
    assert seen == ["called", ("r", 3), Reason.STOP]


def test_has_says_whether_anybody_implements():
    hooks = start(a=plugin(step_done=note_report))
    assert hooks.has("step_done")
    assert not hooks.has("adjust_logits")


@pytest.mark.parametrize("hook", NOTES)
def test_a_step_hook_that_raises_is_named(hook):
    hooks = start(good=plugin(**{hook: NOTES[hook]}), bad=plugin(**{hook: raises}))
    with pytest.raises(PluginError, match=f"bad failed in {hook}: ValueError: from inside") as error:
        getattr(hooks, hook)([])
    assert error.value.where.startswith(f"plugin bad (given as a class), hook {hook}, {__file__} line ")
    assert isinstance(error.value.__cause__, ValueError)
    assert not isinstance(error.value, RequestError)


def test_an_error_that_says_more_keeps_its_class_and_gets_the_name():
    def reads(self, ctx):
        raise CaptureError("a host read", where="here", hint="do not")

    with pytest.raises(CaptureError) as error:
        start(bad=plugin(prepare_forward=reads)).prepare_forward(object())
    assert error.value.where == "here; plugin bad (given as a class), hook prepare_forward"
    assert error.value.hint == "do not"


def test_a_refused_request_is_taken_back_from_those_who_took_it():
    log = []
    keeps = {
        "request_added": lambda self, request: log.append(("added", self.name)),
        "request_released": lambda self, request, reason: log.append(("released", self.name, reason)),
    }
    only_releases = plugin(request_released=lambda self, request, reason: log.append(("released", self.name, reason)))
    bad = plugin(request_added=raises, request_released=keeps["request_released"])
    hooks = start(a=plugin(**keeps), quiet=only_releases, bad=bad, z=plugin(**keeps))
    with pytest.raises(RequestError, match="bad failed in request_added: ValueError: from inside"):
        hooks.request_added("r")
    assert log == [("added", "a"), ("released", "a", Reason.FAILED)]


def test_release_reaches_everybody_and_reports_the_first_error():
    log = []
    classes = {
        "a": plugin(request_released=lambda self, request: log.append(self.name)),
        "bad": plugin(request_released=raises),
        "worse": plugin(request_released=raises),
    }
    with pytest.raises(RequestError, match="worse failed in request_released") as error:
        start(**classes).request_released("r", Reason.ABORTED)
    assert log == ["a"]
    assert any("bad failed" in line for line in error.value.__notes__)


def test_shutdown_reaches_everybody_in_reverse():
    log = []
    closes = plugin(shutdown=lambda self: log.append(self.name))
    with pytest.raises(PluginError, match="bad failed in shutdown"):
        start(a=closes, bad=plugin(shutdown=raises), b=closes).shutdown()
    assert log == ["b", "a"]


TAP = TapSpec(name="x", point="last", width=4)
POOL = PoolSpec(name="pool", width=4, dtype=torch.float32)


def test_refine_is_a_chain():
    def widen(self, specs):
        return [replace(spec, width=spec.width * 2) for spec in specs]

    def add(self, specs):
        return [*specs, POOL]

    hooks = start(a=plugin(refine=widen), b=plugin(refine=lambda self, specs: None), c=plugin(refine=add))
    assert hooks.refine([TAP]) == [replace(TAP, width=8), POOL]


@pytest.mark.parametrize(
    ("refine", "message"),
    [
        (lambda self, specs: [], "bad.refine dropped"),
        (lambda self, specs: [*specs, replace(TAP, name="y")], "which nobody asked for"),
        (lambda self, specs: [*specs, POOL, replace(POOL, width=5)], "added a second"),
        (lambda self, specs: "specs", "must return a sequence of Spec, and gave str"),
        (lambda self, specs: TAP, "must return a sequence of Spec, and gave TapSpec"),
    ],
)
def test_a_refine_that_breaks_its_contract_is_named(refine, message):
    with pytest.raises(PluginError, match=message):
        start(bad=plugin(refine=refine)).refine([TAP])


def test_bind_gives_every_answer_and_decorate_wraps_outwards():
    hooks = start(
        a=plugin(bind=lambda self, spec: lambda x: x + 1, decorate=lambda self, call: lambda x: call(x) * 2),
        b=plugin(bind=lambda self: None, decorate=lambda self: None),
        c=plugin(bind=lambda self, spec, site: lambda x: x, decorate=lambda self, spec, call: lambda x: call(x) + 5),
    )
    answers = hooks.bind(TAP, None)
    assert [name for name, _ in answers] == ["a", "c"]
    assert hooks.decorate(TAP, answers[0][1])(1) == (1 + 1) * 2 + 5


def test_what_is_not_callable_is_refused():
    with pytest.raises(PluginError, match=r"bad.bind must return a callable or None, and gave int"):
        start(bad=plugin(bind=lambda self: 3)).bind(TAP, None)


def test_states_come_with_their_owner_in_the_order_of_requires():
    class Mine(State):
        pass

    makes = {"create_states": lambda self, sizing: [Mine()]}
    hooks = start(
        late=plugin(requires=("early",), **makes), early=plugin(**makes), none=plugin(create_states=raises_none)
    )
    assert [name for name, _ in hooks.create_states(None)] == ["early", "late"]
    with pytest.raises(PluginError, match="must return a sequence of State, and gave int"):
        start(bad=plugin(create_states=lambda self: [3])).create_states(None)


def raises_none(self, sizing):
    return None
