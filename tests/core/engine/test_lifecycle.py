"""Requests from arrival to end: queues, refusals, aborts, raising hooks. Whatever happens, all is given back."""

from __future__ import annotations

import random

import pytest
from drafts import Told
from engines import assert_idle, finish, greedy, start, step, together
from scripts import Noted, noted

from byref.contract import EngineStopped, PluginError, RequestError
from byref.contract.requests import Reason

PROMPTS = [(5, 6, 7, 8, 9, 10, 11, 12), (3,), (4, 4, 2), (9, 8, 7, 6, 5), (1, 2), (200, 100, 50)]
STEP_HOOKS = ("prepare_step", "prepare_forward", "adjust_logits", "commit", "step_done")


@pytest.fixture(scope="module")
def solo(short_llama):
    """What each prompt yields alone: eight tokens."""
    with start(short_llama) as engine:
        return {prompt: together(engine, [prompt], greedy(8))[0].token_ids for prompt in PROMPTS}


@pytest.fixture
def engine(short_llama):
    with start(short_llama, {"noted": Noted}, max_requests=3, chunk=3) as engine:
        yield engine
        if engine.failure is None:
            assert_idle(engine)
        noted(engine).assert_balanced()


def test_more_requests_than_rows_wait_for_their_turn(engine, solo):
    completions = together(engine, PROMPTS, greedy(8))
    assert [c.token_ids for c in completions] == [solo[prompt] for prompt in PROMPTS]
    assert all(c.finished is Reason.LENGTH for c in completions)
    assert noted(engine).most_running == 3
    added = [request for event, request in noted(engine).events if event == "added"]
    assert added == [f"request-{i}" for i in range(1, 7)]
    assert completions[-1].timings.queued > completions[0].timings.queued


def test_what_can_never_fit_is_refused_at_once_while_others_go_on(short_llama, solo):
    with start(short_llama, {"noted": Noted}, kv_tokens=40) as engine:
        first = engine.add(PROMPTS[0], greedy(8))
        step(engine, {})
        with pytest.raises(RequestError, match=r"57 tokens and the KV cache holds 40"):
            engine.add(PROMPTS[0], greedy(49))
        second = engine.add(PROMPTS[1], greedy(8))
        assert [c.token_ids for c in finish(engine, [first, second])] == [solo[PROMPTS[0]], solo[PROMPTS[1]]]
        assert_idle(engine)
        noted(engine).assert_balanced()


def test_what_fits_but_not_now_waits(short_llama, solo):
    with start(short_llama, kv_tokens=24, max_requests=3) as engine:
        completions = together(engine, PROMPTS, greedy(8))
        assert [c.token_ids for c in completions] == [solo[prompt] for prompt in PROMPTS]
        assert_idle(engine)


PHASES = {"waiting, before any step": 0, "in its prompt": 1, "after its first token": 3, "decoding": 6}


@pytest.mark.parametrize("steps", PHASES.values(), ids=PHASES)
def test_abort_ends_one_request_in_every_phase(engine, solo, steps):
    hit, other = engine.add(PROMPTS[0], greedy(8)), engine.add(PROMPTS[2], greedy(8))
    done = {}
    for _ in range(steps):
        step(engine, done)
    completion = engine.abort(hit)
    assert completion.finished is Reason.ABORTED
    assert completion.error is None
    assert completion.token_ids == solo[PROMPTS[0]][: max(steps - 2, 0)]
    assert engine.abort(hit) is None
    assert finish(engine, [other], done)[0].token_ids == solo[PROMPTS[2]]
    assert hit not in done


def test_abort_of_one_that_waits_for_a_row(engine, solo):
    ids = [engine.add(prompt, greedy(8)) for prompt in PROMPTS]
    done = {}
    step(engine, done)
    assert engine.abort(ids[4]).token_ids == ()
    completions = finish(engine, [one for one in ids if one != ids[4]], done)
    assert [c.token_ids for c in completions] == [solo[prompt] for prompt in PROMPTS if prompt != PROMPTS[4]]
    assert ("added", ids[4]) not in noted(engine).events


def test_abort_of_what_ended_or_never_was(engine):
    (completion,) = together(engine, [PROMPTS[1]], greedy(2))
    assert engine.abort(completion.request_id) is None
    assert engine.abort("nobody") is None


def test_leaving_a_stream_aborts_its_request(engine):
    stream = engine.stream(PROMPTS[0], greedy(8))
    next(stream)
    stream.close()
    assert noted(engine).events[-1] == ("aborted", "request-1")


def test_closing_aborts_everything_and_takes_nothing_new(short_llama):
    engine = start(short_llama, {"noted": Noted}, max_requests=2)
    for prompt in PROMPTS:
        engine.add(prompt, greedy(8))
    step(engine, {})
    engine.close()
    assert_idle(engine)
    noted(engine).assert_balanced()
    with pytest.raises(EngineStopped, match="was closed"):
        engine.add(PROMPTS[0])


@pytest.mark.parametrize("hook", ["request_added", "request_released"])
@pytest.mark.parametrize("hit", [0, 2, 5])
def test_a_raising_request_hook_ends_its_request_alone(engine, solo, hook, hit):
    noted(engine).raises[hook] = lambda request: request.prompt == PROMPTS[hit]
    completions = together(engine, PROMPTS, greedy(8))
    for i, (prompt, completion) in enumerate(zip(PROMPTS, completions, strict=True)):
        if i == hit:
            assert completion.finished is Reason.FAILED
            assert f"noted failed in {hook}: ValueError: thrown in {hook}" in str(completion.error)
            assert "plugin noted" in completion.error.where
        else:
            assert completion.token_ids == solo[prompt]
    noted(engine).raises.clear()
    assert together(engine, [PROMPTS[hit]], greedy(8))[0].token_ids == solo[PROMPTS[hit]]


def test_a_raising_release_of_an_aborted_request_is_its_error(engine, solo):
    noted(engine).raises["request_released"] = lambda _: True
    hit = engine.add(PROMPTS[0], greedy(8))
    step(engine, {})
    completion = engine.abort(hit)
    assert completion.finished is Reason.FAILED
    assert "thrown in request_released" in str(completion.error)
    noted(engine).raises.clear()
    assert together(engine, [PROMPTS[0]], greedy(8))[0].token_ids == solo[PROMPTS[0]]


@pytest.mark.parametrize("capture", ["off", "tape"])
@pytest.mark.parametrize("hook", STEP_HOOKS)
def test_a_raising_step_hook_answers_everybody_and_stops(short_llama, hook, capture):
    with start(short_llama, {"noted": Noted}, max_requests=3, chunk=3, capture=capture) as engine:
        plugin, seen = noted(engine), []
        early, *ids = [engine.add(prompt, greedy(2 if i == 0 else 8)) for i, prompt in enumerate(PROMPTS[1:])]
        done = {}
        for _ in range(2):
            step(engine, done)
        assert done.keys() == {early}
        plugin.raises[hook] = lambda subject: seen.append(subject) or True
        if hook == "prepare_forward" and capture == "tape":  # it is recorded, and runs for a new key only
            engine.parts.forwards._capture._recordings.clear()
        for completion in finish(engine, ids, done):
            assert completion.finished is Reason.FAILED
            assert isinstance(completion.error, EngineStopped)
            assert f"noted failed in {hook}: ValueError: thrown in {hook}" in completion.error.what
            assert isinstance(completion.error.__cause__, PluginError)
        assert len(seen) == 1
        assert_idle(engine)
        plugin.assert_balanced()
        for late in (
            lambda: engine.add((1,)),
            engine.step,
            lambda: next(engine.stream((1,))),
            lambda: engine.generate([(1,)]),
        ):
            with pytest.raises(EngineStopped, match=f"thrown in {hook}"):
                late()
        assert engine.abort(ids[0]) is None


@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafting"])
@pytest.mark.parametrize("seed", range(3))
def test_after_any_mix_of_ends_all_is_back(short_llama, solo, seed, drafting):
    draw, plugins = random.Random(seed), {"noted": Noted} | ({"told": Told} if drafting else {})
    with start(short_llama, plugins, max_requests=3, chunk=3, kv_tokens=60) as engine:
        if drafting:
            engine.parts.host.plugin("told").instance.reference = solo
        noted(engine).raises = {
            "request_added": lambda _: draw.random() < 0.15,
            "request_released": lambda _: draw.random() < 0.15,
        }
        live, done = {}, {}
        for _ in range(60):
            if draw.random() < 0.5:
                prompt = draw.choice(PROMPTS)
                live[engine.add(prompt, greedy(draw.randint(1, 8)))] = prompt
            if live.keys() - done.keys() and draw.random() < 0.2:
                hit = draw.choice(sorted(live.keys() - done.keys()))
                completion = engine.abort(hit)
                if completion:
                    done[hit] = completion
            step(engine, done)
        finish(engine, live, done)
        assert done.keys() == live.keys()
        ends = {completion.finished for completion in done.values()}
        assert ends == {Reason.LENGTH, Reason.ABORTED, Reason.FAILED}
        for one, completion in done.items():
            assert completion.token_ids == solo[live[one]][: len(completion.token_ids)]
        assert_idle(engine)
        noted(engine).assert_balanced()
