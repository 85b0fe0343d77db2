"""A byte-level DeepSeek-V3.2 that was trained with its indexer: what it selects is worth what dense attention sees."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import torch
from engines import greedy, one_per_step, start

from byref.contract import Plugin, PluginInfo, hookimpl
from byref.contract.roles import BATCH
from byref.contract.specs import AttentionSpec, rewrite
from byref_dsa.indexing import Selector

MODEL = Path(__file__).resolve().parents[3] / "tests/data/checkpoints/bytes-deepseek-v32"
LENGTH = 1024
"""Four times as long as the texts of the training; the selection is a sixteenth of it."""
ENABLE = {"enable": ["models", "dsa"]}


class Dense(Plugin):
    """Takes every selection away: the attention sees all."""

    info = PluginInfo(api_version=1, lossless=False)

    @hookimpl
    def refine(self, specs):
        return rewrite(specs, AttentionSpec, lambda spec: replace(spec, selection=None))


def texts() -> list[list[int]]:
    """Documentation of Python, as bytes after the mark of a beginning."""
    whole = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    return [[256, *whole[at : at + LENGTH - 1]] for at in (20_000, 150_000, 300_000, 450_000)]


@cache
def loss(kind: str) -> float:
    """Mean loss over the second half of each text: there the selection is less than an eighth of what there is."""
    with start(MODEL, {"dense": Dense} if kind == "dense" else {}, ENABLE, chunk=64, max_context=LENGTH + 64) as engine:
        found = one_per_step(engine, texts(), greedy(1, prompt_logprobs=0))
    losses = [
        -each[token]
        for one in found
        for token, each in list(zip(one.prompt_ids, one.prompt_logprobs, strict=True))[LENGTH // 2 :]
    ]
    return sum(losses) / len(losses)


def test_the_selection_is_within_two_hundredths_of_dense_attention():
    assert loss("sparse") < 1.02 * loss("dense")


def test_a_random_selection_is_worse(monkeypatch):
    draw = random.Random(0)

    def choose(self, q, weights, ctx):
        """As many as are selected, of all that each row sees."""
        chosen = torch.full((ctx.rows, self._spec.top_k), -1)
        for row, end in enumerate((ctx.state(BATCH).index(ctx) + 1).tolist()):
            picked = draw.sample(range(end), min(end, self._spec.top_k))
            chosen[row, : len(picked)] = torch.tensor(picked)
        return chosen

    selected = loss("sparse")
    monkeypatch.setattr(Selector, "_choose", choose)
    assert loss.__wrapped__("random") > 1.05 * selected


def test_its_module_s_drafts_are_mostly_right():
    spec = {"drafter": "mtp", "max_draft_tokens": 3, "adaptive": False}
    prompts = [text[:160] for text in texts()]
    with start(MODEL, None, ENABLE) as engine:
        plain = [one.token_ids for one in one_per_step(engine, prompts, greedy(48))]
    options = {"enable": [*ENABLE["enable"], "spec_decoding"], "spec_decoding": spec}
    with start(MODEL, None, options) as engine:
        assert [one.token_ids for one in one_per_step(engine, prompts, greedy(48))] == plain
        figures = engine.parts.host.plugin("spec_decoding").instance.figures()
    assert figures["mean_accepted"] > 2
