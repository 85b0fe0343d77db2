"""Eight-bit pools: what they cost, how near they are, and that nothing but the rounding changes."""

from __future__ import annotations

import engines
import pytest
import torch
from engines import greedy, one_per_step, together
from paging import assert_idle, start
from seams import Seams

from byref.contract import ByrefError
from byref.contract.specs import AttentionSpec
from byref_paged_kv import PagedKVPlugin
from byref_paged_kv.budget import entry_bytes
from byref_paged_kv.codecs import CODECS, head_widths

PROMPTS = [list(range(3, 40)), [9, 8, 7], list(range(3, 30))]
ERROR = {"int8": 0.5 / 127, "fp8": 1 / 16}
"""The largest rounding of a value, as a part of its head's largest (int8) or of itself (fp8)."""


def values(n=50, heads=4, dim=16, scale=1.0):
    return torch.randn(n, heads * dim, generator=torch.Generator().manual_seed(1)) * scale


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_values_come_back_within_the_rounding(name, scale):
    codec, x = CODECS[name]((16,) * 4, torch.float32), values(scale=scale)
    back = codec.decode(codec.encode(x))
    heads, off = x.view(-1, 4, 16), (back - x).view(-1, 4, 16).abs()
    bound = heads.abs().amax(-1, keepdim=True) * ERROR["int8"] if name == "int8" else heads.abs() * ERROR["fp8"]
    assert (off <= bound * 1.02 + heads.abs().amax(-1, keepdim=True) * (1e-3 if name == "fp8" else 4e-3)).all()


@pytest.mark.parametrize("name", CODECS)
def test_zeros_stay_zeros_and_one_loud_head_does_not_drown_another(name):
    codec, x = CODECS[name]((16,) * 4, torch.float32), values()
    assert not codec.decode(codec.encode(torch.zeros(3, 64))).any()
    loud = x.clone()
    loud[:, :16] *= 1e4
    quiet = codec.decode(codec.encode(loud))[:, 16:]
    assert torch.equal(quiet, codec.decode(codec.encode(x))[:, 16:])


def test_heads_of_every_form():
    mha = AttentionSpec(name="a", heads=4, kv_heads=2, key_dim=24, value_dim=16, scale=1.0)
    mla = AttentionSpec(name="a", heads=4, kv_heads=1, key_dim=40, value_dim=32, scale=1.0, form="mla")
    assert head_widths(mha) == (24, 24, 16, 16)
    assert head_widths(mla) == (32, 8)
    assert sum(head_widths(mha)) == mha.entry_width
    assert sum(head_widths(mla)) == mla.entry_width


@pytest.mark.parametrize("name", CODECS)
def test_an_engine_on_eight_bits_keeps_its_own_word(tiny_llama, name):
    """Whatever the chunks and hits, it answers alike; near the engine that stores all bits, at under a third of it."""
    answers = []
    for chunk in (64, 5):
        with start(tiny_llama, paged={"dtype": name, "page_size": 4}, chunk=chunk) as engine:
            for _ in range(2):
                answers.append([one.token_ids for one in one_per_step(engine, PROMPTS, greedy(6))])  # noqa: PERF401
            spec = next(iter(engine.parts.kv._pools.values())).spec
            assert entry_bytes(spec) <= spec.width * 4 * 0.3
            assert_idle(engine)
    assert answers.count(answers[0]) == 4
    text = [list(range(3, 60))]
    scored = greedy(1, prompt_logprobs=0)
    with engines.start(tiny_llama) as plain, start(tiny_llama, paged={"dtype": name}) as engine:
        (exact,), (rounded,) = together(plain, text, scored), together(engine, text, scored)
    off = [
        abs(a[t] - b[t])
        for a, b, t in zip(exact.prompt_logprobs[1:], rounded.prompt_logprobs[1:], text[0][1:], strict=True)
    ]
    assert 0 < sum(off) / len(off) < (0.05 if name == "int8" else 0.3)


def test_a_pool_that_has_a_codec_is_not_given_another(tiny_llama):
    plugins = {"seams": Seams, "paged_kv": PagedKVPlugin}
    with pytest.raises(ByrefError, match=r"has a codec already, Int8"):
        engines.start(tiny_llama, plugins, {"seams": {"drafts": 4}, "paged_kv": {"dtype": "int8"}})
