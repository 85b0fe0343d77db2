"""Rejected drafts leave nothing behind, and draft modules with indexers and streams say what transformers' layers say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch
from checkpoints import VOCABULARY
from engines import assert_idle, greedy, one_per_step, start, together
from equality import TOP, answers, assert_answers
from fed import Fed
from mtp import module_logits, save_streams_module, save_with_module

from byref.contract import API_VERSION, Key, Plugin, PluginInfo, State, hookimpl
from byref.engine.speculator import PlainSpeculator

DRAW = random.Random(7)
MOST = 5
TOKENS = 12
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(n)] for n in range(2, 10)]
MODULE_PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(n)] for n in (1, 9, 23)]
STEPS = 4


class RightSpeculator(State, PlainSpeculator):
    key: ClassVar[Key]

    def __init__(self, plugin: Right) -> None:
        self._plugin = plugin

    def width(self, request) -> Sequence[int]:
        coming = [*self._plugin.reference[request.prompt][request.generated :], *[0] * MOST][:MOST]
        right = self._plugin.right
        return [*coming[:right], *((token + 1) % VOCABULARY for token in coming[right:])]


RightSpeculator.key = Key("right", RightSpeculator)


class Right(Plugin):
    """So many right drafts, then wrong ones."""

    info = PluginInfo(api_version=API_VERSION, requires=("kv.rewind",))
    right = 0

    @hookimpl
    def register(self, registry):
        registry.drafts(MOST)

    @hookimpl
    def create_states(self, sizing):
        return [RightSpeculator(self)]


@pytest.mark.parametrize("enable", [["models", "dsa"], ["models", "paged_kv", "dsa"]], ids=["contiguous", "pages"])
def test_every_accepted_length_equals_never_having_drafted(family, enable):
    """The windows of eight requests stand at eight places around the boundaries of 4 and 8 tokens."""
    _, folder, _ = family
    params = [greedy(TOKENS, logprobs=TOP)] * len(PROMPTS)
    with start(folder, None, {"enable": enable}) as engine:
        expected = answers(engine, PROMPTS, params)
    with start(folder, {"right": Right}, {"enable": enable}) as engine:
        plugin = engine.parts.host.plugin("right").instance
        plugin.reference = {tuple(p): tokens for p, (tokens, _) in zip(PROMPTS, expected, strict=True)}
        for plugin.right in range(MOST + 1):
            assert_answers(together(engine, PROMPTS, params), expected)
            assert_idle(engine)


def test_a_tree_of_drafts_is_refused_where_entries_are_compressed(checkpoints):
    from drafts import Told

    folder, _ = checkpoints("DeepSeek-V4")
    options = {"enable": ["models", "dsa"], "told": {"tree": True, "right": 1.0}}
    with start(folder, {"told": Told}, options) as engine:
        engine.parts.host.plugin("told").instance.reference = {(1, 2, 3): [4, 5, 6, 7, 8, 9]}
        (completion,) = together(engine, [[1, 2, 3]], greedy(6))
        assert "a tree of drafts" in str(completion.error)


MTP = {"drafter": "mtp", "max_draft_tokens": 3, "adaptive": False}


@pytest.mark.parametrize("name", ["DeepSeek-V3", "DeepSeek-V3.2", "GLM-5", "DeepSeek-V4"])
def test_speculation_with_a_module_changes_no_token(tmp_path, name):
    save_streams_module(tmp_path) if name == "DeepSeek-V4" else save_with_module(tmp_path, name)
    params = [greedy(8, logprobs=TOP)] * len(MODULE_PROMPTS)
    with start(tmp_path, None, {"enable": ["models", "dsa"]}) as engine:
        expected = answers(engine, MODULE_PROMPTS, params)
    enable = ["models", "paged_kv", "dsa", "spec_decoding"]
    with start(tmp_path, None, {"enable": enable, "spec_decoding": MTP}, chunk=5) as engine:
        assert_answers(one_per_step(engine, MODULE_PROMPTS, params), expected)
        figures = engine.parts.host.plugin("spec_decoding").instance.figures()
        assert figures["drafted"] > 0, figures
        assert_idle(engine)


def test_fewer_layers_of_a_target_with_a_module_draft_for_it(tmp_path):
    """The module is numbered behind all of the checkpoint's layers, those that the drafter has not included."""
    save_streams_module(tmp_path)
    params = [greedy(8, logprobs=TOP)] * len(MODULE_PROMPTS)
    with start(tmp_path, None, {"enable": ["models", "dsa"]}) as engine:
        expected = answers(engine, MODULE_PROMPTS, params)
    fewer = {"drafter": "self", "max_draft_tokens": 3, "adaptive": False}
    fewer["options"] = {"layers": 1, "weights": "target"}
    with start(tmp_path, None, {"enable": ["models", "dsa", "spec_decoding"], "spec_decoding": fewer}) as engine:
        assert_answers(together(engine, MODULE_PROMPTS, params), expected)
        assert engine.figures()["spec_decoding"]["drafted"] > 0
        assert_idle(engine)


MODULES = {
    "DeepSeek-V3.2": ("DeepseekV32ForCausalLM.mtp", {}),
    "GLM-5": ("GlmMoeDsaForCausalLM.mtp", {}),
    "GLM-5, the selection goes on": ("GlmMoeDsaForCausalLM.mtp", {"index_share_for_mtp_iteration": 1}),
    "DeepSeek-V4": ("DeepseekV4ForCausalLM.mtp", {}),
}


CASES = [(name, *case) for name in MODULES for case in ((64, False, "off"), (4, True, "off"))]
CASES += [(name, 4, False, "tape") for name in ("GLM-5, the selection goes on", "DeepSeek-V4")]


@pytest.mark.parametrize(("name", "chunk", "drafting", "capture"), CASES)
def test_the_module_says_what_transformers_says(tmp_path, name, chunk, drafting, capture):
    architecture, overrides = MODULES[name]
    if name == "DeepSeek-V4":
        said = save_streams_module(tmp_path)
    else:
        model, module = save_with_module(tmp_path, name.partition(",")[0])
        said = lambda ids, steps: module_logits(model, module, ids, steps, carried=bool(overrides))  # noqa: E731
    point = "last" if name == "DeepSeek-V4" else "normed"
    fed = {"architecture": architecture, "steps": STEPS, "drafting": drafting, "overrides": overrides, "point": point}
    with start(
        tmp_path, {"fed": Fed}, {"enable": ["models", "dsa"], "fed": fed}, chunk=chunk, capture=capture
    ) as engine:
        done = one_per_step(engine, MODULE_PROMPTS[1:2] if capture == "tape" else MODULE_PROMPTS, greedy(4))
        assert_idle(engine)
        logits = engine.parts.host.plugin("fed").instance.logits
    rows = {}
    for id, position, step, row in logits:
        rows.setdefault((id, step), {})[position] = row
    for one in done:
        ids = [*one.prompt_ids, *one.token_ids]
        (expected,) = said(ids, 1)
        for position, row in rows[one.request_id, 0].items():
            torch.testing.assert_close(row, expected[position], atol=1e-3, rtol=1e-4)
        last = len(one.prompt_ids) - 1
        later = said([*one.prompt_ids, one.token_ids[0]], STEPS)
        for step in range(1, STEPS):
            torch.testing.assert_close(rows[one.request_id, step][last + step], later[step][0], atol=1e-3, rtol=1e-4)
