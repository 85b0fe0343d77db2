"""Several choices of one prompt: they share its computation, differ, repeat, and come back together."""

from __future__ import annotations

import pytest
import torch
from engines import assert_idle, finish, start

from byref.contract import API_VERSION, Plugin, PluginInfo, RequestError, SamplingParams, hookimpl
from byref.contract.requests import Reason

PROMPTS = [[5, 9, 77, 3, 2, 8], [100, 2, 3, 40, 5, 6, 70, 8, 9, 10, 11], [7]]


class Watch(Plugin):
    """Keeps what happened to requests; refuses the forks a test names."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.added, self.forked, self.released, self.rows = [], [], [], 0
        self.refuse = ""

    @hookimpl
    def request_added(self, request):
        if request.id == self.refuse:
            raise RequestError(f"no {request.id}")
        self.added.append(request.id)

    @hookimpl
    def request_forked(self, parent, child):
        assert parent.computed == child.computed == len(child.prompt) - 1
        assert child.tokens == list(child.prompt)
        if child.id == self.refuse:
            raise RequestError(f"no {child.id}")
        self.forked.append((parent.id, child.id))

    @hookimpl
    def request_released(self, request, reason):
        self.released.append(request.id)

    @hookimpl
    def step_done(self, report):
        self.rows += report.rows


def params(n: int = 1, seed: int | None = 3, **more) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 8, "ignore_eos": True, "temperature": 1.0} | more), n=n, seed=seed)


def texts(done) -> list[tuple[int, ...]]:
    return [one.token_ids for one in done.choices]


@pytest.fixture
def engine(tiny_llama):
    torch.set_num_threads(1)
    with start(tiny_llama, {"watch": Watch}) as running:
        yield running
        assert_idle(running)
        watch = running.parts.host.plugin("watch").instance
        assert sorted(watch.released) == sorted([*watch.added, *(child for _, child in watch.forked)])


def watch_of(engine) -> Watch:
    return engine.parts.host.plugin("watch").instance


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_choices_differ_repeat_and_the_first_is_that_of_one(engine, prompt):
    (alone,) = engine.generate([prompt], params())
    (four,) = engine.generate([prompt], params(4))
    (again,) = engine.generate([prompt], params(4))
    (two,) = engine.generate([prompt], params(2))
    assert texts(four)[0] == alone.token_ids
    assert len(set(texts(four))) == 4
    assert texts(four) == texts(again)
    assert texts(two) == texts(four)[:2]
    assert [one.choice for one in four.choices] == [0, 1, 2, 3]
    assert {one.request_id for one in four.choices} == {four.request_id}
    assert alone.others == ()


def test_without_a_seed_choices_differ(engine):
    (four,) = engine.generate([PROMPTS[0]], params(4, seed=None))
    assert len(set(texts(four))) == 4


def test_the_prompt_is_computed_once(engine):
    prompt, watch = PROMPTS[1], watch_of(engine)
    engine.generate([prompt], params(4))
    assert watch.added == ["request-1"]
    assert watch.forked == [("request-1", f"request-1#{i}") for i in (1, 2, 3)]
    # The prompt without its last token, and eight rows for each choice.
    assert watch.rows == len(prompt) - 1 + 4 * 8


@pytest.mark.parametrize(
    "sizes", [{"max_requests": 2}, {"kv_tokens": 40, "max_context": 30}, {"chunk": 2}, {"capture": "tape"}], ids=str
)
def test_choices_are_the_same_where_room_is_short(tiny_llama, engine, sizes):
    expected = [texts(done) for done in engine.generate(PROMPTS, params(4))]
    with start(tiny_llama, {"watch": Watch}, **sizes) as small:
        assert [texts(done) for done in small.generate(PROMPTS, params(4))] == expected
        assert_idle(small)


def test_chunks_say_their_choice_and_the_last_has_all(engine):
    chunks = list(engine.stream(PROMPTS[0], params(3), id="mine"))
    done = chunks[-1].completion
    assert {chunk.request_id for chunk in chunks} == {"mine"}
    assert [chunk.completion for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    for one in done.choices:
        own = [chunk for chunk in chunks if chunk.choice == one.choice]
        assert sum((chunk.token_ids for chunk in own), ()) == one.token_ids
        assert "".join(chunk.text for chunk in own) == one.text
        assert [chunk.finished for chunk in own] == [None] * (len(own) - 1) + [Reason.LENGTH]


def test_choices_end_by_themselves(engine):
    (four,) = engine.generate([PROMPTS[0]], params(4, max_tokens=30, ignore_eos=True))
    ends = texts(four)[2][4]
    (cut,) = engine.generate([PROMPTS[0]], params(4, max_tokens=30, stop_token_ids=[ends]))
    for whole, one in zip(four.choices, cut.choices, strict=True):
        at = whole.token_ids.index(ends) + 1 if ends in whole.token_ids else 30
        assert one.token_ids == whole.token_ids[:at]
        assert one.finished is (Reason.STOP if at < 30 or one.token_ids[-1] == ends else Reason.LENGTH)


def test_log_probabilities_of_every_choice(engine):
    (three,) = engine.generate([PROMPTS[0]], params(3, logprobs=2, prompt_logprobs=1))
    (alone,) = engine.generate([PROMPTS[0]], params(1, logprobs=2, prompt_logprobs=1))
    for one in three.choices:
        assert [next(iter(scores)) for scores in one.logprobs] == list(one.token_ids)
        assert [scores and scores.keys() for scores in one.prompt_logprobs] == [
            scores and scores.keys() for scores in alone.prompt_logprobs
        ]
        for mine, theirs in zip(one.prompt_logprobs[1:], alone.prompt_logprobs[1:], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_abort_ends_every_choice(engine, steps):
    id = engine.add(PROMPTS[1], params(3))
    for _ in range(steps):
        engine.step()
    done = engine.abort(id)
    assert [one.finished for one in done.choices] == [Reason.ABORTED] * 3
    assert engine.abort(id) is None
    assert_idle(engine)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_abort_where_prompts_are_computed_in_chunks(tiny_llama, steps):
    with start(tiny_llama, chunk=2) as engine:
        id = engine.add(PROMPTS[1], params(3))
        for _ in range(steps):
            engine.step()
        assert len(engine.abort(id).choices) == 3
        assert engine._planner.choices == {}
        assert_idle(engine)


def test_a_refused_choice_ends_alone(engine):
    watch_of(engine).refuse = "mine#1"
    (done,) = finish(engine, [engine.add(PROMPTS[0], params(3), id="mine")])
    assert [one.finished for one in done.choices] == [Reason.LENGTH, Reason.FAILED, Reason.LENGTH]
    assert "no mine#1" in done.others[0].error.what


def test_choices_of_a_refused_request_go_on(engine):
    (expected,) = engine.generate([PROMPTS[0]], params(3))
    watch_of(engine).refuse = "mine"
    (done,) = finish(engine, [engine.add(PROMPTS[0], params(3), id="mine")])
    assert [one.finished for one in done.choices] == [Reason.FAILED, Reason.LENGTH, Reason.LENGTH]
    assert texts(done)[1:] == texts(expected)[1:]


def test_an_id_that_a_choice_bears_is_in_use(engine):
    engine.add(PROMPTS[0], params(1), id="mine#1")
    with pytest.raises(RequestError, match="'mine#1' is in use"):
        engine.add(PROMPTS[0], params(2), id="mine")
    engine.add(PROMPTS[0], params(1), id="mine")
    engine.abort("mine")
    engine.abort("mine#1")
