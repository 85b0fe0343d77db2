"""Every sparse family equals transformers, over every way that its rows can be cut into forwards, on both KVs."""

from __future__ import annotations

import random

import pytest
from checkpoints import VOCABULARY
from drafts import Told
from engines import assert_idle, greedy, one_per_step, start, together
from equality import TOP, Remembered, assert_equal, assert_tokens
from families import save_family
from memory import fill_free

TOKENS = 6
DRAW = random.Random(0)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40)
"""Below every window, around each boundary of windows (8) and compressed entries (4, 8), ten times the selection (4)."""
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(n)] for n in LENGTHS]
FEW = [PROMPTS[LENGTHS.index(n)] for n in (3, 9, 17, 40)]
SHARED = PROMPTS[-1][:37]
PLAIN, PAGED = ["models", "dsa"], ["models", "paged_kv", "dsa"]


def serve_sparse(folder, enable=PLAIN, plugins=None, options=None, page_size=8, **engine):
    tables = {"enable": enable, **(options or {})}
    if "paged_kv" in enable:
        tables["paged_kv"] = {"page_size": page_size}
    return start(folder, plugins, tables, **engine)


@pytest.mark.parametrize("chunk", range(1, 17))
def test_chunks_equal_transformers(family, chunk):
    _, folder, oracle = family
    enable, serve = (PAGED, one_per_step) if chunk % 2 else (PLAIN, together)
    with serve_sparse(folder, enable, chunk=chunk, max_rows=48) as engine:
        assert_equal(engine, oracle, FEW, TOKENS, serve)
        assert_idle(engine)


@pytest.mark.parametrize(("enable", "chunk"), [(PLAIN, 64), (PAGED, 64), (PAGED, 7)])
def test_every_length_equals_transformers(family, enable, chunk):
    _, folder, oracle = family
    with serve_sparse(folder, enable, chunk=chunk) as engine:
        assert_equal(engine, oracle, PROMPTS, TOKENS)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 32}
VARIANTS = {
    "DeepSeek-V3.2, yarn": ("DeepSeek-V3.2", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}),
    "DeepSeek-V3.2, a wider selection": ("DeepSeek-V3.2", {"index_topk": 16, "mlp_layer_types": ["sparse", "dense"]}),
    "GLM-5, a pattern": ("GLM-5", {"indexer_types": None, "index_topk_pattern": "FSSF"}),
    "GLM-5, every other": ("GLM-5", {"indexer_types": None, "index_topk_freq": 2, "index_skip_topk_offset": 1}),
    "DeepSeek-V4, yarn": ("DeepSeek-V4", {"rope_parameters": YARN, "compress_rope_theta": 4e4, "rope_theta": 1e4}),
    "DeepSeek-V4, no hashes, sigmoid": (
        "DeepSeek-V4",
        {
            "mlp_layer_types": ["moe"] * 4,
            "scoring_func": "sigmoid",
            "layer_types": ["heavily_compressed_attention"] * 4,
        },
    ),
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_equals_transformers(tmp_path, variant):
    name, changes = variant
    oracle = Remembered(save_family(tmp_path, name, seed=1, **changes))
    with serve_sparse(tmp_path, PAGED, chunk=10) as engine:
        assert_equal(engine, oracle, FEW, TOKENS, one_per_step)


def test_published_ratios_equal_transformers(tmp_path):
    """Entries of 4 and 128 tokens beside a window of 128, at each side of their boundaries."""
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    changes = {"compress_rates": rates, "sliding_window": 128, "max_position_embeddings": 512, "index_topk": 16}
    oracle = Remembered(save_family(tmp_path, "DeepSeek-V4", **changes))
    draw = random.Random(2)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(n)] for n in (127, 128, 129, 255, 256, 257)]
    with serve_sparse(tmp_path, PAGED, chunk=50, max_rows=128) as engine:
        assert_equal(engine, oracle, prompts, 3)
        assert_idle(engine)


@pytest.mark.parametrize("chunk", [3, 64])
def test_prefix_hits_equal_transformers(family, chunk):
    _, folder, oracle = family
    prompts = [[*SHARED, 1, 2, 3], [*SHARED, 7], SHARED[:33], [*SHARED[:24], 5]]
    with serve_sparse(folder, PAGED, page_size=4, chunk=chunk) as engine:
        assert_equal(engine, oracle, prompts, TOKENS, one_per_step)
        assert_equal(engine, oracle, prompts[:2], TOKENS)
        assert engine.parts.kv.figures()["hit_tokens"] > 100


def test_preempted_requests_equal_transformers(family):
    _, folder, oracle = family
    prompts = PROMPTS[4::3]
    with serve_sparse(folder, PAGED, kv_tokens=64, chunk=16) as engine:
        done = together(engine, prompts, greedy(14, logprobs=TOP))
        for one, prompt in zip(done, prompts, strict=True):
            tokens = oracle.tokens(prompt, 14)
            assert_tokens(one, tokens, oracle.scores([*prompt, *tokens])[len(prompt) :])
        assert engine.parts.kv.figures()["preemptions"] > 0


def start_told(family, *, tree, enable, **engine):
    """An engine that is told drafts, some of them right."""
    _, folder, oracle = family
    engine = serve_sparse(folder, enable, {"told": Told}, {"told": {"tree": tree}}, **engine)
    told = engine.parts.host.plugin("told").instance
    told.reference = {tuple(prompt): oracle.tokens(prompt, 14) for prompt in PROMPTS[4::3]}
    return engine, told


def assert_told(engine, family, done):
    for one, prompt in zip(done, PROMPTS[4::3], strict=True):
        tokens = family[2].tokens(prompt, 14)
        assert_tokens(one, tokens, family[2].scores([*prompt, *tokens])[len(prompt) :])
    assert_idle(engine)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("enable", [PLAIN, PAGED], ids=["contiguous", "pages"])
def test_drafts_change_no_token(family, enable, tree):
    if tree and family[0] == "DeepSeek-V4":
        pytest.skip("compressed entries are computed along chains")
    engine, told = start_told(family, tree=tree, enable=enable, chunk=5)
    with engine:
        done = one_per_step(engine, PROMPTS[4::3], greedy(14, logprobs=TOP))
        assert_told(engine, family, done)
    assert {0, 1, 2} <= set(told.accepted)


def test_what_free_memory_holds_changes_nothing(family):
    engine, _ = start_told(family, tree=False, enable=PLAIN, chunk=5)
    with engine:
        add, step = engine.add, engine.step

        def poisoned():
            fill_free(engine, float("nan"))
            return step()

        engine.add, engine.step = add, poisoned
        done = one_per_step(engine, PROMPTS[4::3], greedy(14, logprobs=TOP))
        assert_told(engine, family, done)
