"""Published models on a real text: Gemma 3 270M, Q4_K_M, beyond its sliding window, and SmolLM2 135M, Q4_1.

Gemma's activations are large, and at a position or two of a long text transformers' own two ways of attending differ by
more than the tolerance in fp32 (and by 1e-3 from fp64). There, twice their difference is allowed.

llama.cpp rounds activations to eight bits before it multiplies, which moves single log-probabilities by a tenth. Over so
many tokens that leaves about 0.3 % of the perplexity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import llamacpp
import pytest
import torch
from engines import greedy, start
from equality import TOLERANCE, TOP, TransformersOracle

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
TOKENS = 1500
PERPLEXITY = 0.01
"""By how much it may differ."""

pytestmark = [pytest.mark.model, pytest.mark.slow]


def scored(alias: str):
    """The model's file, the text's ids and their log-probabilities; skips where the model has not been pulled."""
    from byref.contract import ModelError
    from byref.loading import open_checkpoint

    try:
        path = open_checkpoint(alias).path
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")
    with start(alias, chunk=256, max_rows=256, max_requests=1, max_context=2048) as engine:
        ids = list(engine.tokenizer.encode(TEXT.read_text()))[:TOKENS]
        assert len(ids) == TOKENS
        return path, ids, engine.generate([ids], greedy(1, prompt_logprobs=TOP))[0].prompt_logprobs


@pytest.fixture(scope="module")
def gemma3():
    return scored("gemma3-270m")


def test_gemma3_equals_transformers_on_a_long_text(gemma3):
    from transformers import AutoModelForCausalLM

    path, ids, found = gemma3
    sdpa, eager = (
        TransformersOracle(
            AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation=kind
            )
        ).scores(ids)
        for kind in ("sdpa", "eager")
    )
    own = [apart(one, other) for one, other in zip(sdpa[1:], eager[1:], strict=True)]
    off = [apart(one, other) for one, other in zip(found[1:], sdpa[1:], strict=True)]
    assert all(mine <= max(TOLERANCE, 2 * theirs) for mine, theirs in zip(off, own, strict=True))
    assert sum(mine > TOLERANCE for mine in off) <= TOKENS // 500


def test_gemma3_is_as_perplexed_as_in_llama_cpp(gemma3):
    path, ids, found = gemma3
    assert perplexity(ids, found) == pytest.approx(llamacpp.perplexity(path, ids), rel=PERPLEXITY)


def test_smollm2_is_as_perplexed_as_in_llama_cpp():
    path, ids, found = scored("smollm2")
    assert perplexity(ids, found) == pytest.approx(llamacpp.perplexity(path, ids), rel=PERPLEXITY)


def perplexity(ids: Sequence[int], found) -> float:
    """exp of the mean negative log-probability of every token but the first."""
    return math.exp(-sum(row[token] for row, token in zip(found[1:], ids[1:], strict=True)) / (len(ids) - 1))


def apart(one, other) -> float:
    """The largest difference over tokens that both name."""
    return max(abs(one[token] - other[token]) for token in one.keys() & other.keys())
