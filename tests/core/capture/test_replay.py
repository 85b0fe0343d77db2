"""Replays of the tape equal eager forwards, for every key, whatever ran before and whatever free memory holds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from checkpoints import VOCABULARY
from drafts import Told
from engines import assert_idle, greedy, one_per_step, start, step, together
from equality import TOP, answers, assert_answers
from memory import fill_free
from replays import Checked

from byref.contract import API_VERSION, Kind, Plugin, PluginInfo, hookimpl
from byref.contract.specs import AttentionSpec, rewrite

WIDE = {"max_requests": 12, "max_rows": 64, "chunk": 7}
LENGTHS = (9, 1, 14, 3, 20, 2, 8, 5, 11, 4, 17)
PROMPTS = [tuple(random.Random(n).randrange(VOCABULARY) for _ in range(n)) for n in LENGTHS]
PARAMS = [greedy(4 + i, logprobs=TOP) for i in range(len(LENGTHS))]


class Windowed(Plugin):
    """Attention sees 6 positions, and its scores are capped."""

    info = PluginInfo(api_version=API_VERSION, lossless=False)

    @hookimpl
    def refine(self, specs):
        return rewrite(specs, AttentionSpec, lambda spec: replace(spec, window=6, softcap=15.0))


ATTENTION = {"whole": {}, "windowed": {"windowed": Windowed}}


@pytest.fixture(scope="module", params=ATTENTION.values(), ids=ATTENTION)
def attention(request):
    return request.param


@pytest.fixture(scope="module")
def expected(short_llama, attention):
    """What the eager engine answers, and the scores of its tokens. Each request ends at another step."""
    with start(short_llama, attention, **WIDE) as engine:
        return answers(engine, PROMPTS, PARAMS)


def start_told(path, attention, expected, *, tree, **engine):
    """An engine that is told drafts, some of them right."""
    started = start(path, {**attention, "told": Told}, {"told": {"tree": tree}}, **WIDE, **engine)
    told = started.parts.host.plugin("told").instance
    told.reference = {prompt: tokens for prompt, (tokens, _) in zip(PROMPTS, expected, strict=True)}
    return started, told


def test_replay_equals_eager_for_every_kind_of_forward(short_llama, attention, expected):
    with start(short_llama, attention, capture="tape", **WIDE) as engine:
        checked = Checked(engine)
        assert_answers(one_per_step(engine, PROMPTS, PARAMS), expected)
        engine.parts.forwards("target", ())
        assert_idle(engine)
    assert {ctx.kind for ctx in checked.runs} == set(Kind)
    assert checked.contexts.keys() == checked.inner.keys
    assert len(checked.runs) > len(checked.contexts)


def test_a_larger_batch_before_a_smaller_leaves_nothing_of_itself(short_llama, attention, expected):
    with start(short_llama, attention, capture="tape", **WIDE) as engine:
        checked = Checked(engine)
        assert_answers(together(engine, PROMPTS, PARAMS), expected)
    batches = [ctx.requests for ctx in checked.runs if ctx.kind is Kind.DECODE]
    assert batches == sorted(batches, reverse=True)
    assert batches.count(10) > 1  # ten requests first, then nine and a padding one
    assert batches[-1] == 1


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("capture", ["off", "tape"])
def test_drafts_change_no_token(short_llama, attention, expected, capture, tree):
    engine, told = start_told(short_llama, attention, expected, tree=tree, capture=capture)
    with engine:
        checked = Checked(engine) if capture == "tape" else None
        assert_answers(one_per_step(engine, PROMPTS, PARAMS), expected)
        assert_idle(engine)
    assert {0, 1, 2} <= set(told.accepted)
    if checked:
        verify = {ctx.rows_per_request for ctx in checked.runs if ctx.kind is Kind.DECODE}
        assert len(verify) > 2
        assert checked.contexts.keys() == checked.inner.keys


@pytest.mark.parametrize(("capture", "rubbish"), [("off", float("nan")), ("off", 1e4), ("tape", float("nan"))])
def test_what_free_memory_holds_changes_nothing(short_llama, attention, expected, capture, rubbish):
    engine, _ = start_told(short_llama, attention, expected, tree=True, capture=capture)
    with engine:
        ids, done = [], {}
        for prompt, one in zip(PROMPTS, PARAMS, strict=True):
            ids.append(engine.add(prompt, one))
            fill_free(engine, rubbish)
            step(engine, done)
        while len(done) < len(ids):
            fill_free(engine, rubbish)
            step(engine, done)
            assert all(pool.data[0].isfinite().all() for pool in engine.parts.kv._pools.values())
        assert_answers([done[one] for one in ids], expected)


def test_the_check_notices_a_replay_that_differs(short_llama):
    with start(short_llama, capture="tape") as engine:
        checked = Checked(engine)
        run = checked.inner.run
        checked.inner.run = lambda ctx, body: run(ctx, body) + torch.tensor(1e-3)
        (completion,) = together(engine, [[1, 2, 3]], greedy(2))
        assert "the logits of the replay differ" in str(completion.error)
