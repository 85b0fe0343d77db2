"""Speculation beside every other feature: what comes is what comes without it, and nothing is left over."""

from __future__ import annotations

import shutil
from pathlib import Path

import doubles
import pytest
from doubles import Own, Watch, assert_idle_with, assert_same, compare, start_with
from engines import finish, greedy, one_per_step, together
from safetensors.torch import load_file, save_file
from seams import Grammar

from byref.contract import API_VERSION, Plugin, PluginInfo, SamplingParams, hookimpl
from byref.contract.requests import Reason
from byref.contract.roles import DRAFT, TARGET

SHARED = [11, 7, 30, 2, 2, 90, 14, 5, 61]
PROMPTS = [[5, 9, 77, 3, 2, 8, 5, 9, 77], [*SHARED, 2, 3, 40], [7, 7, 7], [*SHARED, 8, 1], list(range(1, 30))]
HOT = SamplingParams(max_tokens=16, temperature=0.9, top_k=40, seed=5, ignore_eos=True)
TRAINED = Path(__file__).parents[3] / "tests" / "data" / "checkpoints"
DRAFTERS = {
    "ngram": {"options": {"shortest": 1}, "max_draft_tokens": 5},
    "suffix": {"options": {"shortest": 1, "likely": 0.0}, "tree": True, "max_draft_tokens": 6},
    "draft_model": {"options": {}, "max_draft_tokens": 3},
    "self": {"options": {"layers": 1, "weights": "target"}, "max_draft_tokens": 3},
    "eagle": {"options": {"model": str(TRAINED / "bytes-llama-eagle3")}, "tree": True, "max_draft_tokens": 6},
    "mtp": {"options": {}, "max_draft_tokens": 3},
}
TARGETS = {"eagle": TRAINED / "bytes-llama", "mtp": TRAINED / "bytes-deepseek"}
PAGES = {"paged_kv": {"page_size": 4}}


class Events(Plugin):
    """Notes why requests leave their rows."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.reasons: list[Reason] = []

    @hookimpl
    def request_released(self, request, reason):
        self.reasons.append(reason)


@pytest.fixture(params=DRAFTERS)
def own(request, short_llama, one_layer):
    name, table = request.param, DRAFTERS[request.param]
    table = {**table, "options": {"model": str(one_layer)}} if name == "draft_model" else table
    return Own(TARGETS.get(name, short_llama), name, table)


def test_log_probabilities_of_prompt_and_tokens(own):
    own.compare(PROMPTS[:3], HOT.model_copy(update={"logprobs": 3, "prompt_logprobs": 2}))


@pytest.mark.parametrize("pages", [{}, PAGES], ids=["contiguous", "pages"])
def test_several_choices(own, pages):
    params = HOT.model_copy(update={"n": 3, "logprobs": 1})
    found, _ = own.compare(PROMPTS[:2], params, tables=pages)
    assert len({one.token_ids for one in found[0].choices}) > 1


def test_prompts_in_chunks_beside_drafts(own):
    _, figures = own.compare(PROMPTS, HOT, serve=one_per_step, chunk=2, max_rows=24)
    assert figures["drafted"] > 0


def test_a_grammar_of_another_plugin_sees_drafts(own):
    own.compare(PROMPTS[:3], HOT, plugins={"grammar": Grammar})


def test_prefix_cache_with_some_requests_off_or_bounded(own):
    """The same prompts again and again, whole answers too; at most so many drafts as each request allows."""
    bounds = [None, 0, 1, 2, 0]
    expected = own.plain(PROMPTS, HOT)
    prompts = [*PROMPTS, *([*done.prompt_ids, *done.token_ids] for done in expected)]
    again = own.plain(prompts, HOT)
    with own.start(tables=PAGES) as engine:
        for _ in range(2):
            ids = [
                engine.add(prompt, HOT, options={} if most is None else {"spec_decoding": {"max_draft_tokens": most}})
                for prompt, most in zip(prompts, bounds * 2, strict=True)
            ]
            found = finish(engine, ids)
            assert_same(found, again)
            assert_idle_with(engine)
            for done, most in zip(found, bounds * 2, strict=True):
                assert most is None or done.drafts.drafted <= most * done.drafts.windows
                assert most != 0 or done.drafts.windows == 0
        for done, most in zip(found, bounds * 2, strict=True):
            # A prefix is found where every role has computed it: a model that did not draft for it has not.
            assert (
                done.cached_tokens >= 8
                or len(done.prompt_ids) < 9
                or (most == 0 and own.name not in {"ngram", "suffix"})
            )


def test_a_draft_model_whose_logits_are_no_numbers(one_layer, short_llama, tmp_path):
    """It drafts nonsense, and nothing else is the matter."""
    shutil.copytree(one_layer, tmp_path / "broken")
    tensors = load_file(tmp_path / "broken" / "model.safetensors")
    tensors["model.norm.weight"].fill_(float("nan"))
    save_file(tensors, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    table = {"options": {"model": str(tmp_path / "broken")}}
    for params in (greedy(8), HOT, HOT.model_copy(update={"top_p": 0.9})):
        _, figures = compare(short_llama, "draft_model", PROMPTS[:2], params, table)
        assert figures["drafted"] > 0


def test_a_request_that_is_off_computes_no_row_of_a_draft_model(one_layer, short_llama):
    table = {"options": {"model": str(one_layer)}}
    with start_with(short_llama, "draft_model", table, {"watch": Watch}) as engine:
        off = {"spec_decoding": {"max_draft_tokens": 0}}
        finish(engine, [engine.add(PROMPTS[0], HOT, options=off)])
        lengths = [held.lengths for held in doubles.plugin(engine, "watch").held]
        assert all(length[DRAFT] == 0 < length[TARGET] for length in lengths)


@pytest.mark.parametrize(
    "pages", [{}, {"paged_kv": {"page_size": 4, "prefix_cache": False}}], ids=["contiguous", "pages"]
)
def test_preemption_with_drafts_outstanding(own, pages):
    expected = own.plain(PROMPTS, HOT)
    with own.start({"events": Events}, pages, kv_tokens=64, max_context=60) as engine:
        for serve in (together, one_per_step):
            assert_same(serve(engine, PROMPTS, HOT), expected)
            assert_idle_with(engine)
        assert Reason.PREEMPTED in doubles.plugin(engine, "events").reasons


def test_abort_with_drafts_outstanding(own):
    """Whenever one is aborted, the others go on as if it had not been there."""
    expected = own.plain(PROMPTS, HOT)
    with own.start(tables=PAGES, chunk=8) as engine:
        for steps in (1, 2, 3, 5):
            ids, done = [engine.add(prompt, HOT) for prompt in PROMPTS], {}
            for _ in range(steps):
                done |= {chunk.request_id: chunk.completion for chunk in engine.step() if chunk.completion}
            gone = engine.abort(ids[steps % 3])
            if gone is not None:
                assert gone.token_ids == expected[steps % 3].token_ids[: len(gone.token_ids)]
            left = [i for i in range(len(ids)) if i != steps % 3]
            assert_same(finish(engine, [ids[i] for i in left], done), [expected[i] for i in left])
            assert_idle_with(engine)


@pytest.mark.parametrize("batch", [1, 2, 5, 16])
def test_batches_of_unequal_draft_lengths(short_llama, batch):
    prompts = [[3 + i, *range(40, 41 + i % 5), 9] for i in range(batch)]
    each = [HOT.model_copy(update={"seed": i, "max_tokens": 8 + i, "temperature": 0.4 * (i % 4)}) for i in range(batch)]
    for right in (0, 2, 9):
        table = {"max_draft_tokens": 6, "options": {"right": right, "uneven": True}}
        _, figures = compare(short_llama, "scripted", prompts, each, table, max_requests=16, max_rows=128)
        assert (figures["accepted"] > 0) == (right > 0)


def test_one_token_to_choose_from_is_the_likeliest(own):
    """Invariant I32."""
    likeliest = own.plain(PROMPTS[:2], greedy(16))
    found, _ = own.compare(PROMPTS[:2], HOT.model_copy(update={"top_k": 1}))
    assert [one.token_ids for one in found] == [one.token_ids for one in likeliest]


def test_rows_run_short_of_drafts(short_llama):
    """A step has room for a row of each request and a few drafts: the last in line get none."""
    prompts = [[3 + i, 9, 40] for i in range(8)]
    for right in (1, 9):
        table = {"max_draft_tokens": 6, "options": {"right": right}}
        compare(short_llama, "scripted", prompts, HOT, table, max_rows=11)


def test_priorities(own):
    """Who goes first ends first, with its own tokens."""
    expected, priorities = own.plain(PROMPTS, HOT), [3, 1, 2, 0, 4]
    with own.start(policy="priority", max_requests=1) as engine:
        ids = [engine.add(p, HOT, priority=n) for p, n in zip(PROMPTS, priorities, strict=True)]
        done = [chunk.completion for chunk in engine.follow(*ids) if chunk.completion is not None]
        assert_idle_with(engine)
    order = sorted(range(len(PROMPTS)), key=lambda i: priorities[i])
    assert [ids.index(one.request_id) for one in done] == order
    assert_same(done, [expected[i] for i in order])
