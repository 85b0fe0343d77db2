"""A real model in fp32: its tokens with drafts are those without, greedy and sampled, on pages and off."""

from __future__ import annotations

import pytest
from engines import greedy, start, together
from equality import TOP, answers, assert_answers

from byref.contract import SamplingParams

pytestmark = pytest.mark.model
TEXTS = (
    '{"name": "Ada", "city": "London"}\n{"name": "Alan", "city": "Manchester"}\n{"name": "Grace", "city":',
    "Once upon a time there was a lighthouse",
)
TOKENS = 16
SAMPLED = SamplingParams(max_tokens=TOKENS, temperature=0.8, top_p=0.95, seed=2, ignore_eos=True)
DRAFTERS = {"suffix": {"tree": True}, "self": {"adaptive": False, "max_draft_tokens": 3}}


@pytest.fixture(scope="module")
def plain():
    """(prompts, greedy answers with their scores, sampled tokens)."""
    with start("smollm2", threads=2) as engine:
        prompts = [engine.tokenizer.encode(text) for text in TEXTS]
        asked = [greedy(TOKENS, logprobs=TOP)] * len(prompts)
        sampled = [one.token_ids for one in together(engine, prompts, SAMPLED)]
        return prompts, answers(engine, prompts, asked), sampled


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_its_tokens_are_those_without_drafts(plain, drafter):
    prompts, expected, sampled = plain
    kv = [] if drafter == "self" else ["paged_kv"]
    table = {"drafter": drafter, **DRAFTERS[drafter]}
    options = {"enable": ["models", *kv, "spec_decoding"], "spec_decoding": table}
    with start("smollm2", options=options, threads=2) as engine:
        assert_answers(together(engine, prompts, greedy(TOKENS, logprobs=TOP)), expected)
        assert [one.token_ids for one in together(engine, prompts, SAMPLED)] == sampled
        assert engine.figures()["spec_decoding"]["accepted"] > 0
