"""Output with drafts equals output without, token for token: every drafter, temperature, processor, width and batch."""

from __future__ import annotations

import pytest
from engines import assert_idle, one_per_step, start, together

from byref.contract import SamplingParams

PROMPTS = [[5, 9, 77, 3, 2, 8, 5, 9, 77, 3], [100, 2, 3, 40, 5, 6, 2, 3, 40], [7, 7, 7], list(range(1, 40)) * 2]
TOKENS = 40
KINDS = {
    "greedy": {"temperature": 0.0},
    "cool": {"temperature": 0.7, "top_k": 30, "top_p": 0.9},
    "hot": {"temperature": 1.3, "min_p": 0.02},
}
PROCESSED = {
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.2,
    "logit_bias": {3: 2.0, 50: -3.0},
    "banned_token_ids": (9, 11),
    "min_tokens": 12,
    "stop_token_ids": (77,),
    "logprobs": 3,
}
DRAFTERS = {
    "ngram": {"shortest": 1},
    "suffix": {"shortest": 1, "likely": 0.0},
    "self": {"weights": "int8"},
    "shallow": {"weights": "target", "layers": 2},
    "draft_model": {},
}


def params(kind: str, processed: bool, seed: int) -> SamplingParams:
    more = PROCESSED if processed else {"ignore_eos": True}
    return SamplingParams(max_tokens=TOKENS, seed=seed, **KINDS[kind], **more)


def asked(processed: bool = True) -> list[tuple[list[int], SamplingParams]]:
    """Every prompt with every kind of sampling."""
    return [(p, params(kind, processed, i)) for kind in KINDS for i, p in enumerate(PROMPTS)]


def spec(drafter: str, checkpoint, **more) -> dict:
    options = dict(DRAFTERS[drafter])
    if drafter == "draft_model":
        options["model"] = str(checkpoint)
    name = "self" if drafter == "shallow" else drafter
    return {"drafter": name, "adaptive": False, "options": options, **more}


def run(path, drafter=None, serve=together, processed=True, options=None, draft_path=None, **table):
    enable = ["models", *(options or {}), *(["spec_decoding"] if drafter else [])]
    tables = {"enable": enable, **(options or {})}
    if drafter:
        tables["spec_decoding"] = spec(drafter, draft_path or path, **table)
    with start(path, options=tables) as engine:
        prompts, each = zip(*asked(processed), strict=True)
        done = serve(engine, prompts, each)
        assert_idle(engine)
        return [(one.token_ids, one.finished, one.logprobs) for one in done], engine.figures().get("spec_decoding")


def same(found, expected):
    for (ids, reason, scores), (ids2, reason2, scores2) in zip(found, expected, strict=True):
        assert (ids, reason) == (ids2, reason2)
        for one, two in zip(scores, scores2, strict=True):
            assert one == pytest.approx(two, abs=1e-4)


@pytest.fixture(scope="module")
def plain(tiny_llama):
    return {processed: run(tiny_llama, processed=processed)[0] for processed in (True, False)}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("processed", [True, False])
def test_tokens_equal_those_without_drafts(tiny_llama, short_llama, plain, drafter, processed):
    found, figures = run(tiny_llama, drafter, processed=processed, draft_path=short_llama, max_draft_tokens=4)
    same(found, plain[processed])
    assert figures["drafted"] > 0


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_every_width(tiny_llama, plain, most):
    for drafter in ("ngram", "self"):
        found, figures = run(tiny_llama, drafter, serve=one_per_step, max_draft_tokens=most)
        same(found, plain[True])
        assert figures["drafted"] > figures["accepted"]
    assert figures["accepted"] > 0


@pytest.mark.parametrize("size", [1, 4, 16])
def test_on_pages(tiny_llama, plain, size):
    pages = {"paged_kv": {"page_size": size}}
    for drafter, more in (("suffix", {"tree": True}), ("self", {}), ("ngram", {"adaptive": True})):
        found, _ = run(tiny_llama, drafter, serve=one_per_step, options=pages, max_draft_tokens=5, **more)
        same(found, plain[True])


def test_trees(tiny_llama, plain):
    for serve in (together, one_per_step):
        found, figures = run(tiny_llama, "suffix", serve=serve, tree=True, max_draft_tokens=8)
        same(found, plain[True])
        assert figures["accepted"] > 0


def test_the_target_as_its_own_draft_model_is_always_right(tiny_llama):
    """Over 512 tokens: acceptance does not decay, since both caches keep exactly what was verified (fault S04)."""
    for drafter in ("draft_model", "shallow"):
        options = {"layers": 4, "weights": "target"} if drafter == "shallow" else {"model": str(tiny_llama)}
        table = {"drafter": "self" if drafter == "shallow" else drafter, "adaptive": False, "max_draft_tokens": 4}
        tables = {"enable": ["models", "spec_decoding"], "spec_decoding": {**table, "options": options}}
        with start(tiny_llama, options=tables, max_context=600) as engine:
            for temperature in (0.0, 0.8):
                params = SamplingParams(max_tokens=512, temperature=temperature, seed=5, ignore_eos=True)
                done = engine.generate([[5, 9, 77]], params)[0]
                assert done.drafts.accepted >= 0.99 * done.drafts.drafted
                assert done.drafts.mean_accepted > 3.9
