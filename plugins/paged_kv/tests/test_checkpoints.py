"""Prefixes of models with a state per request: found where a checkpoint was kept, equal to the engine without pages."""

from __future__ import annotations

import random
from dataclasses import replace

import engines
import pytest
from checkpoints import VOCABULARY
from drafts import Told
from engines import finish, greedy, one_per_step, together
from equality import TOP, answers, assert_answers
from gated_delta import Delta, save_delta
from paging import assert_idle, start

from byref.contract import SamplingParams
from byref_paged_kv.kv import PagedKV
from byref_paged_kv.states import StateSpace

DRAFTS = 5
DRAW = random.Random(9)
SHARED = [DRAW.randrange(VOCABULARY) for _ in range(30)]
PROMPTS = [tuple(SHARED[:n] + [DRAW.randrange(VOCABULARY) for _ in range(m)]) for n, m in ((30, 3), (30, 9), (17, 6))]
PROMPTS += [tuple(SHARED), tuple(SHARED[:21]), (3,)]
PARAMS = [greedy(18 + i, logprobs=TOP) for i in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_delta(tmp_path_factory.mktemp("delta"))


@pytest.fixture(scope="module")
def expected(model):
    with engines.start(model, {"delta": Delta}) as engine:
        return answers(engine, PROMPTS, PARAMS)


def begin(model, *, tree=None, reference=(), paged=None, **engine):
    """An engine with states; with drafts where `tree` says of which kind."""
    plugins, options = {"delta": Delta}, {"delta": {"drafts": 0 if tree is None else DRAFTS}}
    if tree is not None:
        plugins, options = {**plugins, "told": Told}, {**options, "told": {"tree": tree, "most": DRAFTS}}
    table = {"page_size": 4, "checkpoint_pages": 2, **(paged or {})}
    started = start(model, plugins, options, paged=table, **engine)
    if tree is not None:
        told = started.parts.host.plugin("told").instance
        told.reference = {prompt: tokens for prompt, (tokens, _) in zip(PROMPTS, reference, strict=True)}
    return started


def cached(completions):
    return [one.cached_tokens for one in completions]


EVERY = [(1, 7, 1), (4, 1, 0), (4, 3, 2), (4, 16, 1), (4, 64, 2), (4, 64, 0), (16, 64, 1), (64, 3, 0)]


@pytest.mark.parametrize(("page_size", "chunk", "every"), EVERY)
def test_hits_and_chunks_change_nothing(model, expected, page_size, chunk, every):
    paged = {"page_size": page_size, "checkpoint_pages": every, "checkpoints": 500}
    with begin(model, paged=paged, chunk=chunk) as engine:
        assert_answers(one_per_step(engine, PROMPTS, PARAMS), expected)
        assert_idle(engine)
        again = one_per_step(engine, PROMPTS, PARAMS)
        assert_answers(again, expected)
        assert_idle(engine)
        # Each finds at least what its own prompt left: the last full page before its last token.
        ends = [(len(prompt) - 1) // page_size * page_size for prompt in PROMPTS]
        assert all(found >= end for found, end in zip(cached(again), ends, strict=True))


def test_a_hit_ends_where_a_checkpoint_was_kept(model):
    with begin(model) as engine:
        assert cached(together(engine, [SHARED], greedy(1))) == [0]  # checkpoints after 8, 16, 24 and 28 tokens
        longer = [[*SHARED[:n], 1, 2, 3] for n in (7, 8, 15, 23, 26, 28, 30)]
        assert [cached(together(engine, [one], greedy(1)))[0] for one in longer] == [0, 8, 8, 16, 24, 28, 28]


def test_a_cold_burst_waits_for_checkpoints_in_common_alone(model):
    """Those that share a checkpoint wait for it; one that shares less than a checkpoint starts at once."""
    with begin(model, chunk=8, paged={"checkpoint_pages": 4}) as engine:
        ids = [engine.add(prompt, greedy(2)) for prompt in (SHARED, [*SHARED[:18], 1, 2], [*SHARED[:9], 1, 2])]
        engine.step()
        running = [one.id for one in engine._planner.running]
        assert running == [ids[0], ids[2]]
        assert cached(finish(engine, ids)) == [0, 16, 0]
        assert_idle(engine)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("chunk", [3, 64])
def test_rejected_drafts_leave_the_state_of_what_was_kept(model, expected, tree, chunk):
    with begin(model, tree=tree, reference=expected, chunk=chunk, paged={"page_size": 2}) as engine:
        for _ in range(2):
            assert_answers(one_per_step(engine, PROMPTS, PARAMS), expected)
            assert_idle(engine)
        whole = [[*prompt, *tokens] for prompt, (tokens, _) in zip(PROMPTS, expected, strict=True)]
        engine.parts.host.plugin("told").instance.reference = {tuple(text): [0] for text in whole}
        # What drafts wrote is found too: every second page of four tokens.
        assert all(
            found >= len(text) // 4 * 4 - 4
            for found, text in zip(cached(together(engine, whole, greedy(1))), whole, strict=True)
        )


def test_a_short_pool_preempts_and_starts_again_from_a_checkpoint(model, expected):
    with begin(model, kv_tokens=96) as engine:
        for _ in range(2):
            assert_answers(together(engine, PROMPTS, PARAMS), expected)
            assert_idle(engine)
        assert engine.parts.kv.figures()["preemptions"] > 0


def test_choices_start_from_the_state_of_their_prompt(model):
    params = SamplingParams(max_tokens=16, ignore_eos=True, temperature=1.0, n=3, seed=5)
    with engines.start(model, {"delta": Delta}) as plain:
        wanted = [[one.token_ids for one in done.choices] for done in together(plain, PROMPTS, params)]
    with begin(model, max_requests=10) as engine:
        for _ in range(2):
            done = together(engine, PROMPTS, params)
            assert [[one.token_ids for one in each.choices] for each in done] == wanted
            assert_idle(engine)


def test_few_checkpoints_are_used_in_turn(model, expected):
    with begin(model, paged={"checkpoints": 3}) as engine:
        for _ in range(2):
            assert_answers(together(engine, PROMPTS, PARAMS), expected)
        (space,) = engine.parts.kv._states
        assert space.pages.cached == 3
        assert space.pages.evictions > 0
        assert_idle(engine)


@pytest.mark.parametrize("off", [{"checkpoints": 0}, {"prefix_cache": False}])
def test_without_checkpoints_nothing_is_found(model, expected, off):
    with begin(model, paged=off) as engine:
        for _ in range(2):
            done = together(engine, PROMPTS, PARAMS)
            assert_answers(done, expected)
            assert set(cached(done)) == {0}
        assert_idle(engine)


def test_a_reset_forgets_checkpoints_too(model):
    with begin(model) as engine:
        together(engine, [SHARED], greedy(1))
        engine.parts.kv.reset()
        assert engine.parts.kv.figures()["checkpoints"] == 0
        assert cached(together(engine, [SHARED], greedy(1))) == [0]


def a_state_too_far(monkeypatch):
    monkeypatch.setattr(
        StateSpace, "state_at", lambda space, row, tokens: space.at(row, tokens % space.geometry.versions)
    )


def no_restore(monkeypatch):
    monkeypatch.setattr(StateSpace, "restore", lambda *args: [])


def no_pause(monkeypatch):
    real = PagedKV.reserve
    monkeypatch.setattr(PagedKV, "reserve", lambda *args: (g := real(*args)) and replace(g, pause=0))
    monkeypatch.setattr(PagedKV, "_keep_states", keep_all)


def keep_all(kv, request, start, end):
    for mark in kv._sharing.marks(request, start, end):
        for space in kv._states:
            kv._copy(space, space.keep(request.row, mark, kv._sharing.before(request, mark)))


@pytest.mark.parametrize("mutate", [a_state_too_far, no_restore, no_pause])
def test_broken_checkpoints_turn_red(model, expected, mutate, monkeypatch):
    mutate(monkeypatch)
    with begin(model, tree=False, reference=expected) as engine:
        done = [*one_per_step(engine, PROMPTS, PARAMS), *one_per_step(engine, PROMPTS, PARAMS)]
    with pytest.raises(AssertionError):
        assert_answers(done, [*expected, *expected])
