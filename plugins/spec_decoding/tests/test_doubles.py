"""Drafts that are always right, never right, and right for exactly j tokens: text, rows, both caches, for every j."""

from __future__ import annotations

import doubles
import pytest
import torch
from doubles import Held, Watch, assert_idle_with, assert_same, start_with
from engines import start, together

from byref.contract import SamplingParams
from byref.contract.roles import DRAFT, TARGET

PROMPTS = [[5, 9, 77, 3, 2, 8], [100, 2, 3, 40, 5, 6, 70, 8, 9, 10], [7, 7, 7]]
MOST = 4
TOKENS = 17
PARAMS = {
    "greedy": SamplingParams(max_tokens=TOKENS, ignore_eos=True, logprobs=2),
    "hot": SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.3, seed=4),
}
KVS = {"contiguous": {}, "pages": {"paged_kv": {"page_size": 4, "prefix_cache": False}}}


def entries(path, texts) -> dict[tuple[int, ...], torch.Tensor]:
    """What a model without drafts keeps of each text: [tokens, width]."""
    with start(path, {"watch": Watch}) as engine:
        engine.generate(texts, SamplingParams(max_tokens=1, ignore_eos=True))
        return {held.tokens: held.entries[TARGET] for held in doubles.plugin(engine, "watch").held}


@pytest.fixture(scope="module", params=PARAMS)
def plain(request, one_layer, short_llama):
    """What comes without drafts, and what both models keep of whole sequences."""
    with start(short_llama) as engine:
        expected = together(engine, PROMPTS, PARAMS[request.param])
    texts = [[*done.prompt_ids, *done.token_ids] for done in expected]
    return PARAMS[request.param], expected, {TARGET: entries(short_llama, texts), DRAFT: entries(one_layer, texts)}


def assert_held(held: Held, whole: dict[str, dict[tuple[int, ...], torch.Tensor]]) -> None:
    """Both caches hold what the tokens so far have, and no more (fault S04)."""
    assert held.lengths[TARGET] == len(held.tokens) - 1
    for role, found in held.entries.items():
        assert len(found) == held.lengths[role] <= held.lengths[TARGET]
        text = next(text for text in whole[role] if held.tokens == text[: len(held.tokens)])
        torch.testing.assert_close(found, whole[role][text][: len(found)], atol=1e-4, rtol=1e-4)


def windows(right: int) -> list[tuple[int, int]]:
    """For each window of a request after its prompt: (drafts, drafts kept)."""
    found, generated = [], 1
    while generated < TOKENS:
        width = min(MOST, TOKENS - generated - 1)
        found.append((width, min(width, right)))
        generated += found[-1][1] + 1
    return found


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("drafter", ["scripted", "scripted_model"])
def test_for_every_number_of_right_drafts(one_layer, short_llama, plain, drafter, kv):
    params, expected, whole = plain
    table = {"max_draft_tokens": MOST, "options": {"model": str(one_layer)} if drafter == "scripted_model" else {}}
    with start_with(short_llama, drafter, table, {"watch": Watch}, KVS[kv], max_rows=18) as engine:
        watch, double = doubles.plugin(engine, "watch"), doubles.drafter(engine)
        double.reference = {done.prompt_ids: done.token_ids for done in expected}
        for right in range(MOST + 1):
            watch.held.clear()
            watch.reports.clear()
            double.right = right
            for pool in engine.parts.kv._pools.values():
                pool.data[1:] = float("nan")  # what was there before says nothing
            found = together(engine, PROMPTS, params)
            assert_same(found, expected)
            assert_idle_with(engine)
            assert {role for held in watch.held for role in held.lengths} == (
                {TARGET, DRAFT} if drafter == "scripted_model" else {TARGET}
            )
            for held in watch.held:
                assert_held(held, whole)
            fate = windows(right)
            for done in found:
                assert (done.drafts.drafted, done.drafts.accepted) == tuple(map(sum, zip(*fate, strict=True)))
                assert done.drafts.windows == sum(width > 0 for width, _ in fate)
            rows = sum(map(len, PROMPTS)) + len(PROMPTS) * sum(1 + width for width, _ in fate)
            assert sum(report.rows for report in watch.reports) == rows
