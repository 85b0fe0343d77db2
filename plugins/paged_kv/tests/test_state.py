"""State discipline on pages: replays equal eager forwards, free slots mean nothing, tables are scrubbed, nothing moves."""

from __future__ import annotations

import random
from dataclasses import replace

import engines
import pytest
from checkpoints import VOCABULARY
from drafts import Told
from engines import finish, greedy, one_per_step, step, together
from equality import TOP, answers, assert_answers, assert_tokens
from paging import assert_idle, assert_tables_are_scrubbed, fill_free, start
from replays import Checked

from byref.contract import API_VERSION, Kind, Plugin, PluginInfo, SamplingParams, hookimpl
from byref.contract.requests import Reason
from byref.contract.specs import AttentionSpec, PoolSpec, rewrite

WIDE = {"max_requests": 12, "max_rows": 64, "chunk": 7}
LENGTHS = (9, 1, 14, 3, 20, 2, 8, 5, 11, 4, 17)
DRAW = random.Random(7)
SHARED = [DRAW.randrange(VOCABULARY) for _ in range(20)]
PROMPTS = [tuple(SHARED[: n // 2] + [DRAW.randrange(VOCABULARY) for _ in range(n - n // 2)]) for n in LENGTHS]
PARAMS = [greedy(4 + i, logprobs=TOP) for i in range(len(LENGTHS))]
PAGED = {"page_size": 4}


class Windowed(Plugin):
    """Half of the layers see 6 positions, and their scores are capped; their pools need not keep more."""

    info = PluginInfo(api_version=API_VERSION, lossless=False)

    @hookimpl
    def refine(self, specs):
        specs = rewrite(specs, AttentionSpec, lambda s: replace(s, window=6, softcap=15.0) if s.layer == 1 else s)
        return rewrite(specs, PoolSpec, lambda s: replace(s, window=6) if s.layer == 1 else s)


ATTENTION = {"whole": {}, "windowed": {"windowed": Windowed}}


@pytest.fixture(scope="module", params=ATTENTION.values(), ids=ATTENTION)
def attention(request):
    return request.param


@pytest.fixture(scope="module")
def expected(short_llama, attention):
    with engines.start(short_llama, attention, **WIDE) as engine:
        return answers(engine, PROMPTS, PARAMS)


def begin(path, attention, expected, *, tree=False, **engine):
    started = start(path, {**attention, "told": Told}, {"told": {"tree": tree}}, paged=PAGED, **WIDE, **engine)
    told = started.parts.host.plugin("told").instance
    told.reference = {prompt: tokens for prompt, (tokens, _) in zip(PROMPTS, expected, strict=True)}
    return started, told


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_replays_equal_eager_forwards_beside_drafts(short_llama, attention, expected, tree):
    engine, told = begin(short_llama, attention, expected, tree=tree, capture="tape")
    with engine:
        checked = Checked(engine)
        assert_answers(one_per_step(engine, PROMPTS, PARAMS), expected)
        assert_answers(together(engine, PROMPTS, PARAMS), expected)
        engine.parts.forwards("target", ())
        assert_idle(engine)
    assert {0, 1, 2} <= set(told.accepted)
    assert {ctx.kind for ctx in checked.runs} == set(Kind)


def test_a_smaller_batch_after_a_larger_leaves_no_live_row(short_llama, attention, expected):
    with start(short_llama, attention, paged=PAGED, capture="tape", **WIDE) as engine:
        checked = Checked(engine)
        pointers = {name: t.data_ptr() for name, t in engine.parts.kv.buffers().items()}
        ids, done = [engine.add(p, one) for p, one in zip(PROMPTS, PARAMS, strict=True)], {}
        while len(done) < len(ids):
            step(engine, done)
            assert_tables_are_scrubbed(engine)
        assert_answers([done[id] for id in ids], expected)
        assert {name: t.data_ptr() for name, t in engine.parts.kv.buffers().items()} == pointers
    batches = [ctx.requests for ctx in checked.runs if ctx.kind is Kind.DECODE]
    assert batches[0] > 8
    assert batches[-1] == 1


@pytest.mark.parametrize(
    ("capture", "rubbish"), [("off", float("nan")), ("off", 1e4), ("tape", float("nan")), ("tape", 1e4)]
)
def test_what_free_memory_holds_changes_nothing(short_llama, attention, expected, capture, rubbish):
    engine, _ = begin(short_llama, attention, expected, tree=True, capture=capture)
    with engine:
        for _ in range(2):
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
        assert engine.parts.kv.figures()["hit_tokens"] > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_whose_entries_are_no_numbers_fails_alone(short_llama, attention, expected, temperature):
    """And who gets its pages later takes no harm."""
    with start(short_llama, attention, paged={**PAGED, "prefix_cache": False, "num_pages": 120}, **WIDE) as engine:
        ids, done = [engine.add(p, one) for p, one in zip(PROMPTS, PARAMS, strict=True)], {}
        ids.append(
            engine.add(PROMPTS[0], SamplingParams(max_tokens=30, temperature=temperature, seed=1, ignore_eos=True))
        )
        running = engine._planner.running
        while not running or running[-1].id != ids[-1] or not running[-1].generated:
            step(engine, done)
        for pool in engine.parts.kv._pools.values():
            pages = [page for page in pool.placement.held[running[-1].row] if page]
            pool.data.view(-1, pool.placement.per_page, pool.data.shape[1])[pages] = float("nan")
        *found, failed = finish(engine, ids, done)
        assert failed.finished is Reason.FAILED
        assert "no numbers" in str(failed.error)
        assert_answers(found, expected)
        assert_answers(together(engine, PROMPTS, PARAMS), expected)
        assert_idle(engine)


def test_pages_behind_the_window_come_back_while_full_ones_stay(short_llama):
    with start(short_llama, {"windowed": Windowed}, paged=PAGED) as engine:
        engine.add(SHARED, greedy(60))
        for _ in range(50):
            engine.step()
        full, newest = engine.parts.kv._paged
        assert full.geometry.window is None
        assert full.pages.used >= 17
        assert newest.pages.used <= 4


def test_requests_larger_than_the_pool_run_where_windows_are_all_they_keep(short_llama):
    """A window space hands its pages out chunk by chunk, so that long prompts wait for one another half way."""

    class OnlyWindows(Plugin):
        info = PluginInfo(api_version=API_VERSION, lossless=False)

        @hookimpl
        def refine(self, specs):
            specs = rewrite(specs, AttentionSpec, lambda s: replace(s, window=40))
            return rewrite(specs, PoolSpec, lambda s: replace(s, window=40))

    prompts = [[i, *(DRAW.randrange(VOCABULARY) for _ in range(90))] for i in range(4)]
    sizes = {"max_requests": 4, "max_rows": 16, "kv_tokens": 96}
    with engines.start(short_llama, {"windows": OnlyWindows}, max_requests=1, max_rows=16) as plain:
        wanted = [plain.generate([prompt], greedy(40, logprobs=TOP))[0] for prompt in prompts]
    with start(short_llama, {"windows": OnlyWindows}, paged={"page_size": 4}, **sizes) as engine:
        for one, solo in zip(together(engine, prompts, greedy(40, logprobs=TOP)), wanted, strict=True):
            assert_tokens(one, solo.token_ids, solo.logprobs)
        assert_idle(engine)
