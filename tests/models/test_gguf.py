"""A GGUF file of each family computes what the model it was written from computes, and what llama.cpp computes from it."""

from __future__ import annotations

import random

import llamacpp
import pytest
import torch
from checkpoints import VOCABULARY
from engines import greedy, one_per_step, start
from equality import TOLERANCE, TransformersOracle, assert_equal
from families import FAMILIES, random_model
from gguf import GGMLQuantizationType as Type
from gguf_files import ARCHITECTURES, write_family

from byref.contract.errors import ModelError
from byref.loading import open_checkpoint

CHANGES = {
    "Mistral": {"sliding_window": None},  # no file of the llama architecture says its window
    "Qwen2": {"use_sliding_window": False},
    "Gemma 3": {
        "num_hidden_layers": 7,
        "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 24,
    },
}

TOP = 100
GELU = 5e-3
"""llama.cpp looks GELU up in a table of fp16 values."""


def prompts(name: str) -> list[list[int]]:
    draw, lengths = random.Random(0), (40, 33, 47) if name == "Phi-3" else (1, 17, 40)
    return [[draw.randrange(VOCABULARY) for _ in range(n)] for n in lengths]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param, random_model(FAMILIES[request.param], **CHANGES.get(request.param, {}))


def test_it_equals_the_model_it_was_written_from(tmp_path, family):
    name, model = family
    path = write_family(tmp_path / "tiny.gguf", name, model)
    with start(path, chunk=16) as engine:
        assert_equal(engine, TransformersOracle(model), prompts(name), 8, one_per_step)


def test_it_equals_llama_cpp(tmp_path, family):
    name, model = family
    if name == "Phi-3":  # llama.cpp gives no layer of these files its window
        model = random_model(FAMILIES[name], sliding_window=None)
    path = write_family(tmp_path / "tiny.gguf", name, model)
    ids = prompts(name)[-1]
    with start(path, chunk=16) as engine:
        found = engine.generate([ids], greedy(1, prompt_logprobs=TOP))[0].prompt_logprobs
    expected = torch.cat(list(llamacpp.logits(path, ids))).log_softmax(-1)
    off = [abs(row[token] - expected[i, token]) for i, row in enumerate(found[1:]) for token in row]
    assert len(off) > TOP * (len(ids) - 1)
    assert max(off) < (GELU if name == "Gemma 3" else TOLERANCE)


def test_its_architecture_is_the_one_of_transformers(tmp_path, family):
    name, model = family
    checkpoint = open_checkpoint(str(write_family(tmp_path / "tiny.gguf", name, model)))
    assert checkpoint.architecture == ("LlamaForCausalLM" if name == "Mistral" else FAMILIES[name].architecture)


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0, Type.Q4_1])
def test_quantised_experts_are_their_own_dequantised_values(tmp_path, kind):
    changes = {"hidden_size": 64, "intermediate_size": 64}
    model = random_model(FAMILIES["Mixtral"], **changes)
    exact = open_checkpoint(str(write_family(tmp_path / "f32.gguf", "Mixtral", model)))
    stored = open_checkpoint(str(write_family(tmp_path / "small.gguf", "Mixtral", model, kind)))
    experts = [name for name in stored.names() if ".experts." in name]
    assert len(experts) == 2 * 4 * 3
    for name in experts:
        found, expected = torch.empty(stored.shape(name)), torch.empty(exact.shape(name))
        stored.read(name, found)
        exact.read(name, expected)
        step = expected.abs().max() / (127 if kind is Type.Q8_0 else 7)
        assert (found - expected).abs().max() <= step


def test_experts_are_in_order(tmp_path):
    model = random_model(FAMILIES["Qwen3-MoE"])
    checkpoint = open_checkpoint(str(write_family(tmp_path / "tiny.gguf", "Qwen3-MoE", model)))
    whole = model.state_dict()["model.layers.1.mlp.experts.down_proj"]
    for e, expected in enumerate(whole):
        found = torch.empty_like(expected)
        checkpoint.read(f"model.layers.1.mlp.experts.{e}.down_proj.weight", found)
        assert torch.equal(found, expected)


def test_every_family_that_llama_cpp_names_is_written():
    assert ARCHITECTURES.keys() == FAMILIES.keys()


@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("Qwen3", {"attention.value_length": 8}, "24 elements in keys, 8 in values"),
        ("Qwen3", {"rope.dimension_count": 8}, "8 are rotated"),
        ("Qwen3-MoE", {"expert_shared_count": 1}, "expert_shared_count"),
        ("Qwen2", {"attention.sliding_window": 8}, "sliding_window"),
    ],
)
def test_settings_that_would_be_lost_are_refused(tmp_path, name, settings, named):
    path = write_family(tmp_path / "odd.gguf", name, random_model(FAMILIES[name]), **settings)
    with pytest.raises(ModelError, match=named):
        _ = open_checkpoint(str(path)).config


def test_gemma3_local_layers_have_a_base_of_their_own(tmp_path):
    model = random_model(FAMILIES["Gemma 3"], **CHANGES["Gemma 3"])
    settings = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 5000.0}
    path = write_family(tmp_path / "tiny.gguf", "Gemma 3", model, **settings)
    assert open_checkpoint(str(path)).config.rope_parameters == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
    }
