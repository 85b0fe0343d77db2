"""Gemma 3 270M as it is published, Q4_K_M: real sliding layers over a text longer than their window."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engines import greedy, start
from equality import TOP, TransformersOracle, assert_scores

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
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    assert_scores(found, TransformersOracle(model).scores(ids))
