"""Both forms of latent attention give the same, and which one runs follows from the rows of the forward."""

from __future__ import annotations

import random

import pytest
import transformers
from checkpoints import VOCABULARY
from engines import one_per_step, start, together
from equality import TransformersOracle, assert_equal
from families import save_family

from byref.answers.expanded import ExpandedAttention

DRAW = random.Random(0)
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(n)] for n in (60, 31, 45)]


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    folder = save_family(tmp_path_factory.mktemp("latent"), "DeepSeek-V3")
    return folder, TransformersOracle(transformers.AutoModelForCausalLM.from_pretrained(folder))


@pytest.mark.parametrize("serve", [together, one_per_step])
@pytest.mark.parametrize(("chunk", "block", "runs"), [(64, 1 << 25, True), (30, 1, True), (8, 1 << 25, False)])
def test_the_expanded_form_is_the_absorbed_one(deepseek, monkeypatch, serve, chunk, block, runs):
    folder, oracle = deepseek
    attend, calls = ExpandedAttention._attend, []
    monkeypatch.setattr("byref.answers.expanded.BLOCK", block)
    monkeypatch.setattr(
        ExpandedAttention,
        "_attend",
        lambda self, q, group, ctx: (calls.append(group.width), attend(self, q, group, ctx))[1],
    )
    with start(folder, chunk=chunk, max_rows=128) as engine:
        assert_equal(engine, oracle, PROMPTS, 4, serve)
        latent = next(b.call for b in engine.parts.binder.bound if type(b.spec).__name__ == "LatentAttentionSpec")
    assert bool(calls) == runs
    assert min(calls, default=latent._expanded.worth) >= latent._expanded.worth


@pytest.mark.parametrize("enable", [["models"], ["models", "paged_kv"]])
def test_latent_entries_on_either_kv(deepseek, enable):
    folder, oracle = deepseek
    with start(folder, None, {"enable": enable}, chunk=16) as engine:
        assert_equal(engine, oracle, [*PROMPTS, [*PROMPTS[0][:40], 3]], 6, one_per_step)
