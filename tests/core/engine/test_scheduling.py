"""A request's tokens are its own: whatever arrives when, however rows are cut, whoever is preempted."""

from __future__ import annotations

import random
from functools import cache

import pytest
from checkpoints import VOCABULARY
from drafts import Told
from engines import assert_idle, finish, greedy, one_per_step, start, step, together
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import Noted, noted

from byref.contract import SamplingParams
from byref.contract.requests import Reason

PROMPTS = [tuple(random.Random(n).randrange(VOCABULARY) for _ in range(n)) for n in (1, 2, 3, 5, 8, 13, 21, 34)]
TOKENS = 10


@pytest.fixture(scope="module")
def solo(one_layer):
    """The tokens of one request that is alone: of a prompt, greedy or with a seed."""
    with start(one_layer) as engine:

        @cache
        def tokens(prompt, seed=None):
            return together(engine, [prompt], params(seed))[0].token_ids

        yield tokens


def params(seed=None, tokens=TOKENS):
    sampled = {} if seed is None else {"temperature": 0.9, "top_k": 200, "top_p": 0.95, "seed": seed}
    return SamplingParams(max_tokens=tokens, ignore_eos=True, **sampled)


@st.composite
def workloads(draw):
    """Sizes of an engine, and requests: (arrives after so many steps, prompt, tokens, seed)."""
    rows = draw(st.integers(2, 40))
    sizes = {
        "max_rows": rows,
        "max_requests": draw(st.integers(1, min(rows, 5))),
        "chunk": draw(st.integers(1, rows)),
        "kv_tokens": draw(st.sampled_from([55, 120, 0])),
    }
    seeds = st.one_of(st.none(), st.integers(0, 3))
    request = st.tuples(st.integers(0, 12), st.sampled_from(PROMPTS), st.integers(1, TOKENS), seeds)
    return sizes, draw(st.lists(request, min_size=1, max_size=9))


def serve(engine, requests):
    """Add each request after its number of steps; the completions in the order of `requests`."""
    ids, done = {}, {}
    for now in range(13):
        for i, (at, prompt, tokens, seed) in enumerate(requests):
            if at == now:
                ids[i] = engine.add(prompt, params(seed, tokens))
        step(engine, done)
    return finish(engine, [ids[i] for i in range(len(requests))], done)


@settings(max_examples=40)
@given(workloads())
def test_every_request_gets_the_tokens_it_gets_alone(one_layer, solo, workload):
    sizes, requests = workload
    with start(one_layer, {"noted": Noted}, **sizes) as engine:
        for completion, (_, prompt, tokens, seed) in zip(serve(engine, requests), requests, strict=True):
            assert completion.token_ids == solo(prompt, seed)[:tokens]
            assert completion.finished is Reason.LENGTH
        assert noted(engine).most_running <= sizes["max_requests"]
        assert_idle(engine)
        noted(engine).assert_balanced()


@settings(max_examples=25)
@given(workloads(), st.booleans())
def test_drafts_change_no_request(one_layer, solo, workload, tree):
    sizes, requests = workload
    sizes["kv_tokens"] = 0
    with start(one_layer, {"told": Told}, {"told": {"tree": tree, "most": 4}}, **sizes) as engine:
        told = engine.parts.host.plugin("told").instance
        for seed in {seed for *_, seed in requests}:
            told.reference = {prompt: solo(prompt, seed) for prompt in PROMPTS}
            chosen = [request for request in requests if request[-1] == seed]
            for completion, (_, prompt, tokens, _) in zip(serve(engine, chosen), chosen, strict=True):
                assert completion.token_ids == solo(prompt, seed)[:tokens]
        assert_idle(engine)


@settings(max_examples=25)
@given(workloads(), st.integers(0, 10**6))
def test_preemption_changes_no_request(one_layer, solo, workload, luck):
    """A KV that refuses room now and then, as one would whose memory runs short."""
    (sizes, requests), draw = workload, random.Random(luck)
    with start(one_layer, {"noted": Noted}, **sizes) as engine:
        kv, reserve = engine.parts.kv, engine.parts.kv.reserve
        kv.reserve = lambda request, n: None if len(kv._room) > 1 and draw.random() < 0.3 else reserve(request, n)
        for completion, (_, prompt, tokens, seed) in zip(serve(engine, requests), requests, strict=True):
            assert completion.token_ids == solo(prompt, seed)[:tokens]
        assert_idle(engine)
        noted(engine).assert_balanced()


def test_preemption_happens_and_keeps_what_was_streamed(one_layer, solo):
    with start(one_layer, {"noted": Noted}, max_requests=3, chunk=4) as engine:
        kv, reserve, refused = engine.parts.kv, engine.parts.kv.reserve, []

        def short(request, n):
            if len(refused) < 4 and len(kv._room) > 1 and request.generated > 2:
                return refused.append(request.id)
            return reserve(request, n)

        kv.reserve = short
        ids = [engine.add(prompt, greedy(TOKENS, logprobs=1, prompt_logprobs=1)) for prompt in PROMPTS[3:6]]
        shown, done = {one: [] for one in ids}, {}
        while len(done) < len(ids):
            for chunk in engine.step():
                shown[chunk.request_id] += chunk.token_ids
                if chunk.completion:
                    done[chunk.request_id] = chunk.completion
        assert {event for event, _ in noted(engine).events} == {"added", "preempted", "length"}
        for one, prompt in zip(ids, PROMPTS[3:6], strict=True):
            assert tuple(shown[one]) == done[one].token_ids == solo(prompt)
            assert [next(iter(scores)) for scores in done[one].logprobs] == shown[one]
            assert [scores is None for scores in done[one].prompt_logprobs] == [True] + [False] * (len(prompt) - 1)
        assert_idle(engine)
        noted(engine).assert_balanced()


@pytest.mark.parametrize(("capture", "chunk"), [("off", 1), ("off", 3), ("off", 16), ("tape", 16)])
def test_a_seed_fixes_the_tokens(one_layer, solo, chunk, capture):
    given_seeds = [i % 3 for i in range(len(PROMPTS))]
    expected = [solo(prompt, seed) for prompt, seed in zip(PROMPTS, given_seeds, strict=True)]
    assert len(set(expected)) == len(expected)
    with start(one_layer, chunk=chunk, capture=capture) as engine:
        for way in (together, one_per_step)[capture == "tape" :]:
            completions = way(engine, PROMPTS, [params(seed) for seed in given_seeds])
            assert [c.token_ids for c in completions] == expected


def test_another_seed_gives_other_tokens_and_none_gives_its_own_each_time(one_layer, solo):
    assert len({solo(PROMPTS[4], seed) for seed in range(6)}) == 6
    unseeded = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.9)
    with start(one_layer, seed=5) as one, start(one_layer, seed=5) as other:
        first, again = (together(engine, [PROMPTS[4]] * 4, unseeded) for engine in (one, other))
        assert [c.token_ids for c in first] == [c.token_ids for c in again]
        assert len({c.token_ids for c in first}) == 4
    with start(one_layer, seed=6) as engine:
        assert [c.token_ids for c in together(engine, [PROMPTS[4]] * 4, unseeded)] != [c.token_ids for c in first]


def test_two_rows_are_enough(one_layer, solo):
    """Prompts and decodes share the least of budgets, and nobody starves."""
    with start(one_layer, max_rows=2, max_requests=2, chunk=1) as engine:
        completions = together(engine, PROMPTS, params())
        assert [c.token_ids for c in completions] == [solo(prompt) for prompt in PROMPTS]
