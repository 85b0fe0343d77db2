"""A stranger's plugin inside a running engine: it acts, its errors reach whom they concern, and nothing is left over."""

import pytest

from byref.config import load_config
from byref.contract.errors import EngineStopped, PluginError, RequestError
from byref.contract.requests import Reason, SamplingParams
from byref.engine import Engine

SHORT = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.fixture
def engine(site, good, tiny_llama):
    site(good)
    engines = []

    def start(*names, max_requests=4, **tables):
        sizes = {"engine": {"max_requests": max_requests, "max_rows": 64, "threads": 1, "capture": "off"}}
        model = {"model": {"path": str(tiny_llama), "dtype": "float32", "device": "cpu"}}
        plugins = {"plugins": {"enable": ["models", *names], **tables}}
        engines.append(Engine.start(load_config(overrides={**model, **sizes, **plugins}, environ={})))
        return engines[-1]

    yield start
    for one in engines:
        one.close()


def finish(engine, *ids):
    """Steps until every request has ended, at most a hundred times; the completions in the order of `ids`."""
    done = {}
    for _ in range(100):
        done |= {chunk.request_id: chunk.completion for chunk in engine.step() if chunk.completion is not None}
        if done.keys() >= set(ids) or engine.failure is not None:
            break
    return [done[one] for one in ids]


def assert_empty(engine):
    usage = engine.usage()
    assert engine.idle
    assert {name: usage[name] for name in ("used_tokens", "waiting", "running")} == dict.fromkeys(
        ("used_tokens", "waiting", "running"), 0
    )


def test_it_acts_when_enabled_and_only_then(engine):
    plain, counting = engine(), engine("counter", counter={"favourite": 65, "start": 100})
    (one,), (two,) = plain.generate(["hello"], SHORT), counting.generate(["hello"], SHORT)
    assert two.token_ids == (65,) * 6
    assert one.token_ids != two.token_ids
    assert counting.parts.host.plugin("counter").instance.count == 106


@pytest.mark.parametrize("hook", ["request_added", "request_released"])
def test_a_raising_request_hook_ends_its_request_alone(engine, hook):
    running = engine("thrower", "counter", thrower={"hook": hook})
    expected = [c.token_ids for c in engine().generate(["one", "three"], SHORT)]
    ids = [running.add("one", SHORT), running.add("two", SHORT, options={"thrower": {}}), running.add("three", SHORT)]
    first, hit, last = finish(running, *ids)
    assert [first.token_ids, last.token_ids] == expected
    assert first.finished is last.finished is Reason.LENGTH
    assert hit.finished is Reason.FAILED
    assert isinstance(hit.error, RequestError)
    assert hit.error.what == f"thrower failed in {hook}: ValueError: thrown in {hook}"
    assert hit.error.where.startswith(f"plugin thrower (stranger-good 1.2.0), hook {hook}, ")
    assert "thrower.py line " in hit.error.where
    assert isinstance(hit.error.__cause__, ValueError)
    assert_empty(running)
    assert running.generate(["again"], SHORT)[0].finished is Reason.LENGTH


def test_streaming_a_refused_request_raises_its_error(engine):
    running = engine("thrower", thrower={"hook": "request_added"})
    with pytest.raises(RequestError, match="thrower failed in request_added"):
        list(running.stream("two", SHORT, options={"thrower": {}}))
    assert_empty(running)


@pytest.mark.parametrize("hook", ["prepare_step", "step_done"])
def test_a_raising_step_hook_stops_the_engine_and_answers_everybody(engine, hook):
    running = engine("thrower", max_requests=2, thrower={"hook": hook, "step": 2})
    ids = [running.add(prompt, SHORT) for prompt in ("one", "two", "waits", "waits too")]
    completions = finish(running, *ids)
    assert [c.finished for c in completions] == [Reason.FAILED] * 4
    for completion in completions:
        assert isinstance(completion.error, EngineStopped)
        assert f"thrower failed in {hook}: ValueError: thrown in {hook}" in completion.error.what
        assert isinstance(completion.error.__cause__, PluginError)
        assert completion.error.where.startswith(f"plugin thrower (stranger-good 1.2.0), hook {hook}, ")
        assert completion.error.hint.startswith("tell the author of thrower")
    assert_empty(running)
    with pytest.raises(EngineStopped):
        running.add("late", SHORT)
    with pytest.raises(EngineStopped):
        running.step()


@pytest.mark.parametrize("hook", ["none", "prepare_step"])
def test_plugins_are_shut_down_once_however_the_engine_ended(engine, hook):
    running = engine("thrower", thrower={"hook": hook})
    finish(running, running.add("one", SHORT))
    running.close()
    running.close()
    assert running.parts.host.plugin("thrower").instance.closed == 1


def test_a_raising_device_hook_stops_the_start(engine):
    with pytest.raises(PluginError, match="thrower failed in prepare_forward") as error:
        engine("thrower", thrower={"hook": "prepare_forward"})
    assert error.value.where.startswith("plugin thrower (stranger-good 1.2.0), hook prepare_forward, ")


def test_options_that_a_plugin_refuses_end_nothing(engine):
    running = engine("counter")
    with pytest.raises(RequestError, match="unknown key 'lable'"):
        running.add("x", SHORT, options={"counter": {"lable": "x"}})
    assert_empty(running)
    assert running.generate(["hello"], SHORT)[0].finished is Reason.LENGTH
