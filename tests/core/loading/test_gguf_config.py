"""Configurations of GGUF files are those that transformers reads from the same files."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from byref.contract.errors import ModelError
from byref.loading import open_checkpoint

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def config_of(path):
    return open_checkpoint(str(path)).config


def test_it_is_what_transformers_reads(gguf_of):
    path = gguf_of()
    found, expected = config_of(path).to_dict(), AutoConfig.from_pretrained(path.parent, gguf_file=path.name).to_dict()
    ignored = {"_name_or_path", "architectures", "attention_bias", "dtype", "vocab_size"}
    assert {k: v for k, v in found.items() if k not in ignored} == {
        k: v for k, v in expected.items() if k not in ignored
    }
    assert found["architectures"] == ["LlamaForCausalLM"]
    assert found["attention_bias"] is True
    assert found["vocab_size"] == 160


def test_tied_embeddings_are_those_without_an_output(gguf_of):
    assert config_of(gguf_of()).tie_word_embeddings is False
    assert config_of(gguf_of(drop={"lm_head.weight"}, name="tied.gguf")).tie_word_embeddings is True


def test_the_architecture_is_a_class_of_transformers(gguf_of):
    assert open_checkpoint(str(gguf_of())).architecture == "LlamaForCausalLM"


def factors_of(parameters, base=500000.0, dim=128):
    """The divisors that `parameters` lead to, by transformers' own rotary embedding."""
    config = LlamaConfig(hidden_size=dim, num_attention_heads=1, rope_parameters=parameters | {"rope_theta": base})
    plain = base ** -(torch.arange(0, dim, 2) / dim)
    return (plain / LlamaRotaryEmbedding(config).inv_freq).numpy().astype(np.float32)


def test_stored_rotary_factors_become_llama3(gguf_of):
    expected = LLAMA3 | {"original_max_position_embeddings": 8192}
    changes = {"rope.freq_base": 500000.0, "rope.dimension_count": 128}
    path = gguf_of(changes=changes, more={"rope_freqs.weight": factors_of(expected)})
    found = config_of(path).rope_parameters
    assert found == expected | {"rope_theta": 500000.0, "factor": pytest.approx(32.0)}
    assert "rope_freqs.weight" not in open_checkpoint(str(path)).names()


def test_other_rotary_factors_are_refused(gguf_of):
    path = gguf_of(more={"rope_freqs.weight": np.linspace(1, 3, 8, dtype=np.float32)})
    with pytest.raises(ModelError, match="not those of Llama 3"):
        config_of(path)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 64, "finetuned": True},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_named_rotary_scalings(gguf_of, stored, expected):
    config = config_of(gguf_of(changes={f"rope.scaling.{key}": value for key, value in stored.items()}))
    assert expected | {"rope_theta": 10000.0} == {key: config.rope_parameters[key] for key in (*expected, "rope_theta")}


@pytest.mark.parametrize(
    "stored", [{"type": "longrope", "factor": 2.0}, {"type": "linear", "factor": 2.0, "alpha": 3.0}]
)
def test_rotary_scalings_nobody_understands(gguf_of, stored):
    path = gguf_of(changes={f"rope.scaling.{key}": value for key, value in stored.items()})
    with pytest.raises(ModelError, match=f"scaling '{stored['type']}' with .*factor is not understood"):
        config_of(path)


def test_a_setting_that_would_be_lost_is_refused(gguf_of):
    with pytest.raises(ModelError, match=r"settings attention\.sliding_window of a llama file are not"):
        config_of(gguf_of(changes={"attention.sliding_window": 8}))


def test_settings_that_do_not_fit_together(gguf_of):
    with pytest.raises(ModelError, match=r"the settings do not fit together(?s:.*)attention heads"):
        config_of(gguf_of(changes={"attention.head_count": 7}))


def test_end_ids_are_the_named_and_the_well_known(gguf_of):
    tokens = ["<|endoftext|>", "<s>", "</s>", "<|im_end|>", "<|eot_id|>", "plain"]
    changes = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 3, 1, 1],
        "tokenizer.ggml.eot_token_id": 5,
    }
    assert open_checkpoint(str(gguf_of(changes=changes))).end_ids == {0, 2, 3, 5}


@pytest.mark.model
def test_smollm2(smollm2):
    assert smollm2.architecture == "LlamaForCausalLM"
    assert smollm2.end_ids == {0, 2}
    config = smollm2.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (30, 9, 3)
    assert (config.vocab_size, config.rope_parameters["rope_theta"], config.tie_word_embeddings) == (
        49152,
        100000.0,
        True,
    )
