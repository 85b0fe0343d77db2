"""Output with drafts equals output without, token for token: every drafter, temperature, processor, width and batch."""

from __future__ import annotations

import pytest
from doubles import compare
from engines import assert_idle, one_per_step, start, together

from byref.contract import SamplingParams

PROMPTS = [[5, 9, 77, 3, 2, 8, 5, 9, 77, 3], [100, 2, 3, 40, 5, 6, 2, 3, 40], [7, 7, 7], list(range(1, 30)) * 2]
TOKENS = 24
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
    "shallow": {"weights": "target", "layers": 1},
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
def plain(short_llama):
    return {processed: run(short_llama, processed=processed)[0] for processed in (True, False)}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("processed", [True, False])
def test_tokens_equal_those_without_drafts(short_llama, one_layer, plain, drafter, processed):
    found, figures = run(short_llama, drafter, processed=processed, draft_path=one_layer, max_draft_tokens=4)
    same(found, plain[processed])
    assert figures["drafted"] > 0


@pytest.mark.parametrize("most", range(1, 9))
def test_every_width(short_llama, plain, most):
    for drafter in ("ngram", "self"):
        found, figures = run(short_llama, drafter, serve=one_per_step, max_draft_tokens=most)
        same(found, plain[True])
        assert figures["drafted"] > figures["accepted"]
    assert figures["accepted"] > 0


@pytest.mark.parametrize("size", [1, 4, 16])
def test_on_pages(short_llama, plain, size):
    pages = {"paged_kv": {"page_size": size}}
    for drafter, more in (("suffix", {"tree": True}), ("self", {}), ("ngram", {"adaptive": True})):
        found, _ = run(short_llama, drafter, serve=one_per_step, options=pages, max_draft_tokens=5, **more)
        same(found, plain[True])


def test_trees(short_llama, plain):
    for serve in (together, one_per_step):
        found, figures = run(short_llama, "suffix", serve=serve, tree=True, max_draft_tokens=8)
        same(found, plain[True])
        assert figures["accepted"] > 0


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory):
    from checkpoints import save_llama

    folder = tmp_path_factory.mktemp("long-llama")
    return save_llama(folder, seed=2, num_hidden_layers=2, max_position_embeddings=600)


@pytest.mark.parametrize("drafter", ["draft_model", "self", "scripted"])
def test_what_is_always_right_stays_so(long_llama, drafter):
    """Over 512 tokens acceptance does not decay, since both caches keep exactly what was verified (fault S04)."""
    options = {
        "draft_model": {"model": str(long_llama)},
        "self": {"weights": "target"},
        "scripted": {},
    }[drafter]
    # A drafter draws among the likeliest tokens only.
    for temperature, top_k in ((0.0, 0), (0.8, 40)):
        params = SamplingParams(max_tokens=512, temperature=temperature, top_k=top_k, seed=5, ignore_eos=True)
        (done,), _ = compare(long_llama, drafter, [[5, 9, 77]], params, {"max_draft_tokens": 4, "options": options})
        assert done.drafts.accepted >= 0.99 * done.drafts.drafted
        assert done.drafts.mean_accepted > 3.9
