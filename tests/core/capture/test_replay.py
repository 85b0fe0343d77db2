"""Replays of the tape equal eager forwards, for every key, whatever ran before and whatever free memory holds."""

from __future__ import annotations

import random

import pytest
import torch
from checkpoints import VOCABULARY
from drafts import Told
from engines import assert_idle, greedy, one_per_step, start, step
from equality import TOP, EngineOracle, assert_tokens
from memory import fill_free
from replays import Checked

from byref.contract import Kind

WIDE = {"max_requests": 12, "max_rows": 64, "chunk": 7}
LENGTHS = (9, 1, 14, 3, 20, 2, 8, 5, 11, 4, 30)


def prompts():
    draw = random.Random(3)
    return [tuple(draw.randrange(VOCABULARY) for _ in range(n)) for n in LENGTHS]


@pytest.fixture(scope="module")
def plain(tiny_llama):
    """The eager engine without plugins, and what it answers: each request ends at another step."""
    with start(tiny_llama, **WIDE) as engine:
        yield EngineOracle(engine), one_per_step(engine, prompts(), params())


def params():
    return [greedy(6 + 3 * i, logprobs=TOP) for i in range(len(LENGTHS))]


def expect(completions, plain):
    oracle, expected = plain
    for one, other in zip(completions, expected, strict=True):
        assert_tokens(one, other.token_ids, oracle.scores([*one.prompt_ids, *other.token_ids])[len(one.prompt_ids) :])


def test_replay_equals_eager_for_every_kind_of_forward(tiny_llama, plain):
    with start(tiny_llama, capture="tape", **WIDE) as engine:
        checked = Checked(engine)
        completions = one_per_step(engine, prompts(), params())
        engine.parts.forwards("target", ())
        expect(completions, plain)
        assert_idle(engine)
    assert {ctx.kind for ctx in checked.runs} == set(Kind)
    assert checked.contexts.keys() == checked.inner.keys


def test_a_larger_batch_before_a_smaller_leaves_nothing_of_itself(tiny_llama, plain):
    with start(tiny_llama, capture="tape", **WIDE) as engine:
        checked = Checked(engine)
        expect(one_per_step(engine, prompts(), params()), plain)
    decodes = [ctx for ctx in checked.runs if ctx.kind is Kind.DECODE]
    batches = [ctx.requests for ctx in decodes]
    assert sorted(set(batches), reverse=True) == list(dict.fromkeys(batches))  # it shrank
    assert 10 in batches  # and this one served ten requests, then nine and a padding request
    reused = len(checked.runs) - len(checked.contexts)
    assert reused > len(checked.contexts)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("capture", ["off", "tape"])
def test_drafts_change_no_token(tiny_llama, plain, capture, tree):
    with start(tiny_llama, {"told": Told}, {"told": {"tree": tree}}, capture=capture, **WIDE) as engine:
        told = engine.parts.host.plugin("told").instance
        told.reference = dict(zip(prompts(), [c.token_ids for c in plain[1]], strict=True))
        checked = Checked(engine) if capture == "tape" else None
        expect(one_per_step(engine, prompts(), params()), plain)
        assert_idle(engine)
    assert {0, 1, 2} <= set(told.accepted)
    if checked:
        verify = [ctx for ctx in checked.runs if ctx.kind is Kind.DECODE and ctx.rows_per_request > 1]
        assert len({ctx.rows_per_request for ctx in verify}) > 1
        assert any(ctx.kind is Kind.MIXED and ctx.rows > ctx.requests for ctx in checked.runs)


@pytest.mark.parametrize("rubbish", [float("nan"), 1e4, float("inf")])
@pytest.mark.parametrize("capture", ["off", "tape"])
def test_what_free_memory_holds_changes_nothing(tiny_llama, plain, capture, rubbish):
    with start(tiny_llama, {"told": Told}, {"told": {"tree": True}}, capture=capture, **WIDE) as engine:
        engine.parts.host.plugin("told").instance.reference = dict(zip(prompts(), [c.token_ids for c in plain[1]], strict=True))
        ids, done = [], {}
        for prompt, one in zip(prompts(), params(), strict=True):
            ids.append(engine.add(prompt, one))
            fill_free(engine, rubbish)
            step(engine, done)
        while len(done) < len(ids):
            fill_free(engine, rubbish)
            step(engine, done)
            assert all(pool.data[0].isfinite().all() for pool in engine.parts.kv._pools.values())
        expect([done[one] for one in ids], plain)


def test_the_check_notices_a_replay_that_differs(tiny_llama):
    with start(tiny_llama, capture="tape") as engine:
        checked = Checked(engine)
        run = checked.inner.run
        checked.inner.run = lambda ctx, body: run(ctx, body) + torch.tensor(1e-3)
        engine.add([1, 2, 3], greedy(2))
        done = {}
        step(engine, done)
        (completion,) = done.values()
        assert "the logits of the replay differ" in str(completion.error)
