"""Each of the known mistakes changes what is said: tests of parity would turn red."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from checkpoints import VOCABULARY
from engines import greedy, start
from equality import TOP, assert_equal
from families import save_family

from byref.contract import EngineStopped, Plugin, PluginInfo, hookimpl
from byref.contract.specs import AttentionSpec, rewrite
from byref_dsa import compression, indexing, layout
from byref_dsa.attention import GatheredAttention
from byref_dsa.states import SlotMappings, TopKShare
from byref_models import deepseek_v32

DRAW = random.Random(11)
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(n)] for n in (9, 26, 41)]
TOKENS = 4
ENABLE = {"enable": ["models", "dsa"]}


def red(checkpoint, change=lambda engine: None, options=ENABLE) -> bool:
    """Whether an engine, changed after its start, differs from transformers."""
    folder, oracle = checkpoint
    with start(folder, None, options, chunk=7) as engine:
        change(engine)
        try:
            assert_equal(engine, oracle, PROMPTS, TOKENS)
        except (AssertionError, EngineStopped):
            return True
    return False


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "GLM-5", "DeepSeek-V4"])
def test_nothing_changed_is_green(checkpoints, name):
    assert not red(checkpoints(name))


@pytest.mark.parametrize(("name", "wrong"), [("DeepSeek-V3.2", "interleaved"), ("GLM-5", "half")])
def test_the_other_rotary_layout(checkpoints, monkeypatch, name, wrong):
    from byref_models import glm_moe_dsa

    for module in (deepseek_v32, glm_moe_dsa):
        monkeypatch.setattr(module, "index_layout", lambda config, published: wrong)
    assert red(checkpoints(name))


def test_the_configuration_names_the_layout_before_the_class_does():
    config = type("Config", (), {})()
    assert deepseek_v32.index_layout(config, "half") == "half"
    config.indexer_rope_interleave = True
    assert deepseek_v32.index_layout(config, "half") == "interleaved"
    config.indexer_rope_interleave = False
    assert deepseek_v32.index_layout(config, "interleaved") == "half"


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "DeepSeek-V4"])
def test_no_relu(checkpoints, monkeypatch, name):
    monkeypatch.setattr(
        indexing, "index_scores", lambda q, keys, weights: torch.einsum("rwhd,rkd,rwh->rwk", q, keys, weights)
    )
    assert red(checkpoints(name))


class Exact:
    """In place of fp8: what is stored is what was given."""

    def __init__(self, dtype):
        self.dtype = dtype

    def width(self, width):
        return width

    def encode(self, values):
        return values

    def decode(self, stored):
        return stored


@pytest.mark.parametrize("sides", [2, 1])
def test_a_hadamard_matrix_on_one_side(checkpoints, monkeypatch, sides):
    monkeypatch.setattr(layout, "Fp8Keys", Exact)
    monkeypatch.setattr(indexing, "round_fp8", lambda q: q)
    rotate = indexing.hadamard
    if sides == 1:
        monkeypatch.setattr(indexing, "hadamard", lambda x: rotate(x) if x.dim() == 3 else x)
    assert red(checkpoints("DeepSeek-V3.2"), options={**ENABLE, "dsa": {"index_keys": "fp8"}}) == (sides == 1)


def test_a_shared_layer_with_a_selection_of_its_own(checkpoints, monkeypatch):
    def newest(self, q, k, weights, ctx):
        from byref.contract.roles import BATCH

        share = ctx.state(TopKShare.key)
        share.hold((ctx.state(BATCH).index(ctx)[:, None] - torch.arange(4)).clamp(min=-1), ctx)

    monkeypatch.setattr(indexing.Borrow, "__call__", newest)
    monkeypatch.setattr(GatheredAttention, "_once", staticmethod(lambda key, find, ctx: find()))
    assert red(checkpoints("GLM-5"))


def test_output_that_is_not_turned_back(checkpoints):
    def change(engine):
        for layer in engine.parts.units[0].model.layers:
            layer.attention.turn_back = lambda *args: None

    assert red(checkpoints("DeepSeek-V4"), change)


def test_entries_turned_by_their_number(checkpoints, monkeypatch):
    closings = compression.Compressor._closings

    def by_number(self, ctx):
        found = closings(self, ctx)
        return replace(found, positions=found.positions // self._spec.ratio)

    monkeypatch.setattr(compression.Compressor, "_closings", by_number)
    assert red(checkpoints("DeepSeek-V4"))


def test_windows_that_do_not_overlap(checkpoints, monkeypatch):
    closings = compression.Compressor._closings

    def own_window(self, ctx):
        found = closings(self, ctx)
        there = found.there.clone()
        if self._spec.overlap:
            there[:, : self._spec.ratio] = False
        return replace(found, there=there)

    monkeypatch.setattr(compression.Compressor, "_closings", own_window)
    assert red(checkpoints("DeepSeek-V4"))


def test_index_keys_of_the_chunk_alone(checkpoints, monkeypatch):
    view = indexing.Selector._view

    def chunk(self, group, rows, ctx):
        from byref.contract.roles import BATCH

        slots, seen = view(self, group, rows, ctx)
        offsets = ctx.state(BATCH).offsets(ctx)[group.request_slice, None, None]
        return slots, seen & (torch.arange(seen.shape[-1]) >= offsets)

    monkeypatch.setattr(indexing.Selector, "_view", chunk)
    assert red(checkpoints("DeepSeek-V3.2"))


@pytest.mark.parametrize("name", ["GLM-5", "DeepSeek-V4"])
def test_a_memo_shared_between_two_keys(checkpoints, monkeypatch, name):
    get = SlotMappings.get
    monkeypatch.setattr(SlotMappings, "get", lambda self, key, find: get(self, key[:1], find))
    assert red(checkpoints(name))


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "DeepSeek-V4"])
def test_a_memo_that_is_not_cleared(checkpoints, monkeypatch, name):
    monkeypatch.setattr(SlotMappings, "clear", lambda self: None)
    assert red(checkpoints(name))


def test_a_selection_that_is_not_made_anew(checkpoints, monkeypatch):
    hold = TopKShare.hold
    monkeypatch.setattr(TopKShare, "hold", lambda self, chosen, ctx: None if self._held else hold(self, chosen, ctx))
    assert red(checkpoints("GLM-5"))


class Dense(Plugin):
    """Takes every selection away: the attention sees all."""

    info = PluginInfo(api_version=1, lossless=False)

    @hookimpl
    def refine(self, specs):
        return rewrite(specs, AttentionSpec, lambda spec: replace(spec, selection=None))


def test_a_context_shorter_than_the_selection_is_dense_attention(tmp_path, monkeypatch):
    """To the last bit by the dense path, and within rounding by the sparse one."""
    save_family(tmp_path, "DeepSeek-V3.2", index_topk=64)
    found = []
    for plugins, sparse in (({"dense": Dense}, False), ({}, False), ({}, True)):
        if sparse:
            monkeypatch.setattr(GatheredAttention, "__call__", always_sparse)
        with start(tmp_path, plugins, ENABLE, chunk=7) as engine:
            done = [engine.generate([prompt], greedy(8, prompt_logprobs=TOP))[0] for prompt in PROMPTS]
        found.append([(one.token_ids, one.prompt_logprobs) for one in done])
    assert found[0] == found[1]
    for (tokens, scores), (others, expected) in zip(found[2], found[0], strict=True):
        assert tokens == others
        for mine, theirs in zip(scores[1:], expected[1:], strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)


def always_sparse(self, q, kv, ctx):
    self._own.write(ctx, kv)
    return self._attend(q, self._parts(ctx))


def test_a_row_that_sees_nothing_gives_zeros(checkpoints):
    attend = None

    def change(engine):
        nonlocal attend
        attend = next(b.call for b in engine.parts.binder.bound if isinstance(b.call, GatheredAttention))

    red(checkpoints("DeepSeek-V3.2"), change)
    spec, pool = attend._spec, attend._own
    q = torch.randn(3, spec.heads, spec.key_dim) * 1e4
    seen = torch.tensor([[True, True], [False, False], [True, False]])
    out = attend._attend(q, [(pool, (torch.zeros(3, 2, dtype=torch.int64), seen))])
    assert out.isfinite().all()
    assert not out[1].any()
