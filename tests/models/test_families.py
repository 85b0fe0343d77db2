"""Every family equals transformers, over every way that its rows can be cut into forwards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from checkpoints import VOCABULARY
from engines import assert_idle, greedy, one_per_step, start, together
from equality import TOP, Remembered, assert_equal, assert_scores
from families import EVERY, FAMILIES, LATENT, LONG, save_family

from byref.answers import experts
from byref.contract.errors import CaptureError, ModelError
from byref_models import ARCHITECTURES

TOKENS = 12
WAYS = {
    "prefill at once": (64, together),
    "chunks of 1": (1, together),
    "chunks of 3": (3, together),
    "chunks of 16": (16, together),
    "mixed arrivals": (16, one_per_step),
}
VARIANTS = {
    "Llama, biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Mistral, no window": ("Mistral", {"sliding_window": None}),
    # transformers' cache keeps everything for a window of one, and then differs from its own forward without a cache.
    "Mistral, a window of two": ("Mistral", {"sliding_window": 2}),
    "Qwen2, no window": ("Qwen2", {"use_sliding_window": False}),
    "Qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "Qwen2, dynamic": ("Qwen2", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}}),
    "Qwen2, yarn": (
        "Qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "Qwen3, biases and windows": (
        "Qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    ),
    "Gemma 3, no softcap, own head": ("Gemma 3", {"final_logit_softcapping": None, "tie_word_embeddings": False}),
    "Gemma 3, global layers scaled": (
        "Gemma 3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
    "Phi-3, half of each head, no scaling": ("Phi-3", {"sliding_window": None, "rope_parameters": None}),
    "Phi-3, whole heads, no scaling": (
        "Phi-3",
        {"partial_rotary_factor": 1.0, "sliding_window": None, "rope_parameters": None},
    ),
    "DeepSeek-V3, no latent of queries, halves": ("DeepSeek-V3", {"q_lora_rank": None, "rope_interleave": False}),
    "DeepSeek-V3, biases": (
        "DeepSeek-V3",
        {"attention_bias": True, "norm_topk_prob": False, "n_group": 1, "topk_group": 1},
    ),
    "DeepSeek-V3, yarn": (
        "DeepSeek-V3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 0.7,
            }
        },
    ),
    "Mixtral, a window": ("Mixtral", {"sliding_window": 8, "num_experts_per_tok": 1}),
    "Qwen3-MoE, some layers dense": ("Qwen3-MoE", {"decoder_sparse_step": 2, "norm_topk_prob": False}),
    "Qwen3-MoE, listed layers dense": ("Qwen3-MoE", {"mlp_only_layers": [1], "attention_bias": True}),
    "Qwen3-MoE, every expert": ("Qwen3-MoE", {"num_experts_per_tok": 6}),
}


SHORT_CONTEXT = FAMILIES["Phi-3"].changes["original_max_position_embeddings"]


def prompts(name: str, seed: int = 0) -> list[list[int]]:
    """Of many lengths; those of Phi-3 all lie beyond its short context, where one set of rotary factors holds."""
    draw, lengths = random.Random(seed), (40, 33, 64, 47) if name == "Phi-3" else (1, 2, 17, 5, 40, 16)
    return [[draw.randrange(VOCABULARY) for _ in range(n)] for n in lengths]


@pytest.fixture(scope="module", params=FAMILIES | LATENT)
def family(request, tmp_path_factory):
    """Its name, its folder and its oracle."""
    folder = save_family(tmp_path_factory.mktemp("family"), request.param)
    return request.param, folder, Remembered(folder)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_equals_transformers(family, way):
    (name, folder, oracle), (chunk, serve) = family, way
    with start(folder, chunk=chunk) as engine:
        assert_equal(engine, oracle, prompts(name), TOKENS, serve)
        assert_idle(engine)


def test_its_replays_equal_transformers(family):
    name, folder, oracle = family
    with start(folder, chunk=16, capture="tape") as engine:
        assert_equal(engine, oracle, prompts(name)[2:4], 4, one_per_step)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_equals_transformers(tmp_path, variant):
    name, changes = variant
    oracle = Remembered(save_family(tmp_path, name, seed=1, **changes))
    with start(tmp_path, chunk=16) as engine:
        assert_equal(engine, oracle, prompts(name, 1), TOKENS, one_per_step)


def test_longrope_takes_the_short_factors_in_an_engine_of_short_context(tmp_path):
    oracle = Remembered(save_family(tmp_path, "Phi-3"))
    draw = random.Random(2)
    short = [[draw.randrange(VOCABULARY) for _ in range(n)] for n in (1, 5, 19)]
    with start(tmp_path, chunk=16, max_context=SHORT_CONTEXT) as engine:
        assert_equal(engine, oracle, short, TOKENS)


@pytest.mark.parametrize(("context", "kind"), [(SHORT_CONTEXT, "short"), (SHORT_CONTEXT + 1, "long")])
def test_longrope_is_decided_by_the_engines_context_for_all_requests(tmp_path, context, kind):
    """The oracle has that set of factors for both, so that it uses it at every length."""
    save_family(tmp_path / "model", "Phi-3")
    rope = LONG | dict.fromkeys(("short_factor", "long_factor"), LONG[f"{kind}_factor"])
    oracle = Remembered(save_family(tmp_path / "oracle", "Phi-3", rope_parameters=rope))
    draw = random.Random(2)
    asked = [[draw.randrange(VOCABULARY) for _ in range(n)] for n in (1, 5, context - 1 - TOKENS)]
    with start(tmp_path / "model", chunk=16, max_context=context) as engine:
        assert_equal(engine, oracle, asked, TOKENS, one_per_step)


def test_longrope_equals_transformers_from_the_first_length_beyond(tmp_path):
    oracle = Remembered(save_family(tmp_path, "Phi-3"))
    draw = random.Random(2)
    text = [draw.randrange(VOCABULARY) for _ in range(SHORT_CONTEXT + 1)]
    with start(tmp_path, chunk=16, max_context=SHORT_CONTEXT + 2) as engine:
        found = engine.generate([text], greedy(1, prompt_logprobs=TOP))[0].prompt_logprobs
        assert_scores(found, oracle.scores(text))


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3-MoE", "DeepSeek-V3"])
def test_one_operator_for_all_experts_gives_the_same(tmp_path, monkeypatch, name):
    monkeypatch.setattr(experts, "groups", lambda _: True)
    oracle = Remembered(save_family(tmp_path, name))
    with start(tmp_path, chunk=16) as engine:
        assert_equal(engine, oracle, prompts(name), TOKENS, one_per_step)


def test_a_loop_over_experts_is_refused_by_capture(tmp_path, monkeypatch):
    monkeypatch.setattr(experts, "groups", lambda _: False)
    save_family(tmp_path, "Mixtral")
    with pytest.raises(CaptureError, match="MoESpec"):
        start(tmp_path, capture="tape")


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("Llama", {"hidden_act": "relu"}, "relu"),
        ("Gemma 3", {"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ("Gemma 3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path, name, changes, named):
    save_family(tmp_path, name, **changes)
    with pytest.raises(ModelError, match=named):
        start(tmp_path)


def test_a_kind_of_rotary_scaling_that_nobody_knows_is_refused():
    from byref_models.rotary import rotary

    config = FAMILIES["Llama"].config()
    config.rope_parameters = {"rope_type": "proportional", "rope_theta": 1e4}
    with pytest.raises(ModelError, match="proportional"):
        rotary(config, "target", 16)


def test_the_table_has_every_architecture():
    assert {family.architecture for family in EVERY.values()} == set(ARCHITECTURES)


def test_the_page_has_every_family():
    page = (Path(__file__).resolve().parents[2] / "docs" / "parity.md").read_text()
    for name, family in EVERY.items():
        assert f"\n| {name} | " in page
        assert f"\n| {name} | `{family.architecture}` | " in page
