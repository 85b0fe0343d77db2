"""Llama equals transformers, over every way that its rows can be cut into forwards."""

from __future__ import annotations

import random

import pytest
import torch
from checkpoints import VOCABULARY, save_llama
from engines import assert_idle, one_per_step, start, together
from equality import TransformersOracle, assert_equal
from transformers import LlamaForCausalLM

TOKENS = 24
VARIANTS = {
    "plain": {},
    "biases": {"attention_bias": True},
    "a head of its own": {"tie_word_embeddings": False},
    "one KV head": {"num_key_value_heads": 1},
    "as many KV heads": {"num_key_value_heads": 4},
    "heads of another size": {"head_dim": 24},
    "rope: other base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "rope: linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "rope: llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "rope: yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
SERVED = {"together": together, "one per step": one_per_step}


def prompts(seed: int = 0) -> list[list[int]]:
    """Of many lengths, the shortest and one beyond every chunk included."""
    draw = random.Random(seed)
    return [[draw.randrange(VOCABULARY) for _ in range(n)] for n in (1, 2, 3, 17, 5, 40, 64, 16)]


@pytest.fixture(scope="module")
def oracle(tiny_llama):
    return TransformersOracle(LlamaForCausalLM.from_pretrained(tiny_llama))


@pytest.mark.parametrize("serve", SERVED.values(), ids=SERVED)
@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_it_equals_transformers_however_its_rows_are_cut(tiny_llama, oracle, chunk, serve):
    with start(tiny_llama, chunk=chunk) as engine:
        assert_equal(engine, oracle, prompts(), TOKENS, serve)
        assert_idle(engine)


def test_it_equals_transformers_up_to_the_last_position(tiny_llama, oracle):
    with start(tiny_llama, chunk=50) as engine:
        assert_equal(engine, oracle, [prompts()[5]], 256 - 40 - 1)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_equals_transformers(tmp_path, changes):
    save_llama(tmp_path, seed=1, **changes)
    oracle = TransformersOracle(LlamaForCausalLM.from_pretrained(tmp_path))
    with start(tmp_path, chunk=16) as engine:
        assert_equal(engine, oracle, prompts(1), TOKENS, one_per_step)


TEXTS = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",
    "The mitochondrion is the part of the cell that",
    "Water boils at a lower temperature on a mountain because",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "The capital of France is",
    "Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my purse, and nothing particular to interest me on shore, I thought I would sail about a little and see the watery part.",
    "To make an omelette, first",
    "In 1969, Neil Armstrong and Buzz Aldrin",
    "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:",
)


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_equals_transformers_on_english():
    from transformers import AutoModelForCausalLM

    from byref.contract import ModelError
    from byref.loading import open_checkpoint

    try:
        path = open_checkpoint("smollm2").path
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")
    oracle = TransformersOracle(
        AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    )
    with start("smollm2", chunk=24, max_requests=10, max_context=256) as engine:
        assert_equal(engine, oracle, [engine.tokenizer.encode(text) for text in TEXTS], 16, one_per_step)
