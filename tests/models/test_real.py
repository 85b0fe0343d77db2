"""Gemma 3 270M as it is published, Q4_K_M: real sliding layers over a text longer than their window.

Its activations are large, and at a position or two of a long text transformers' own two ways of attending differ by more
than the tolerance in fp32 (and by 1e-3 from fp64). There, twice their difference is allowed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engines import greedy, start
from equality import TOLERANCE, TOP, TransformersOracle

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
TOKENS = 1500


@pytest.mark.model
@pytest.mark.slow
def test_gemma3_equals_transformers_on_a_long_text():
    from transformers import AutoModelForCausalLM

    from byref.contract import ModelError
    from byref.loading import open_checkpoint

    try:
        path = open_checkpoint("gemma3-270m").path
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")
    with start("gemma3-270m", chunk=256, max_rows=256, max_requests=1, max_context=2048) as engine:
        ids = list(engine.tokenizer.encode(TEXT.read_text()))[:TOKENS]
        assert len(ids) == TOKENS
        found = engine.generate([ids], greedy(1, prompt_logprobs=TOP))[0].prompt_logprobs
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


def apart(one, other) -> float:
    """The largest difference over tokens that both name."""
    return max(abs(one[token] - other[token]) for token in one.keys() & other.keys())
