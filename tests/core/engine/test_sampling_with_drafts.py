"""Every parameter means the same when tokens are drafted, in chains and trees: each row counts its own drafts."""

from __future__ import annotations

import pytest
from checkpoints import END
from drafts import Told
from engines import assert_idle, start, together

from byref.contract import SamplingParams
from byref.engine import Completion, processors

PROMPTS = [[5, 9, 77, 3, 2, 8], [100, 2, 3, 40, 5, 6, 70, 8], [7, 7, 7]]
TOKENS = 24
FEW = {"allowed_token_ids": range(60, 68)}
"""Tokens that come again within a window, so that penalties count drafts."""
SAMPLED = {"temperature": 1.0, "seed": 5}
WAYS = {
    "penalties": FEW | {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.5},
    "sampled": SAMPLED | FEW | {"frequency_penalty": 1.5, "repetition_penalty": 0.7, "min_p": 0.02},
    "tokens": SAMPLED | {"allowed_token_ids": range(60, 90), "banned_token_ids": [61, 62], "logit_bias": {63: 3.0}},
    "ends": {"logit_bias": {END: 50.0}, "min_tokens": 9, "ignore_eos": False},
    "truncated": SAMPLED | {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "logprobs": 2},
    "stops": SAMPLED | FEW | {"stop": ["ba", "ee"], "stop_token_ids": [62], "min_tokens": 6},
    "choices": SAMPLED | {"n": 3, "prompt_logprobs": 2, "logprobs": 1},
}


def params(way: str) -> SamplingParams:
    return SamplingParams(**({"max_tokens": TOKENS, "ignore_eos": True} | WAYS[way]))


def drafted(tiny_llama, way: str, tree: bool) -> None:
    """With drafts, half of them right, every request has the tokens it has without."""
    with start(tiny_llama) as engine:
        plain = together(engine, PROMPTS, params(way))
    with start(tiny_llama, {"told": Told}, {"told": {"most": 5, "tree": tree}}) as engine:
        told = engine.parts.host.plugin("told").instance
        told.reference = {done.prompt_ids: done.token_ids for done in plain}
        found = together(engine, PROMPTS, params(way))
        assert_idle(engine)
    assert sum(told.accepted) > 5
    assert [*map(seen, found)] == [*map(seen, plain)]


def seen(done: Completion) -> list:
    """What a client sees of a request; of log-probabilities the tokens, whose order is theirs."""
    prompt = [[*scores] if scores else scores for scores in done.prompt_logprobs or ()]
    return [
        (one.token_ids, one.text, one.finished, [[*scores] for scores in one.logprobs], prompt) for one in done.choices
    ]


def test_every_parameter_is_tried():
    assert set().union(*WAYS.values(), ["max_tokens"]) == SamplingParams.model_fields.keys()


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_token(tiny_llama, way, tree):
    drafted(tiny_llama, way, tree)


@pytest.mark.parametrize("way", ["penalties", "sampled"])
def test_mutation_penalties_blind_to_drafts_turn_red(tiny_llama, way, monkeypatch):
    real = processors.Seen.count

    def count(seen, info, logits):
        real(seen, info, logits)
        return seen.counts

    monkeypatch.setattr(processors.Seen, "count", count)
    with pytest.raises(AssertionError):
        drafted(tiny_llama, way, False)
