"""The draft module of a DeepSeek checkpoint says what transformers' module says, at every row and draft step."""

from __future__ import annotations

import random

import pytest
import torch
from checkpoints import VOCABULARY
from engines import assert_idle, greedy, one_per_step, start
from fed import Fed
from mtp import module_logits, save_with_module

DRAW = random.Random(3)
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(n)] for n in (1, 9, 23)]
TOKENS = 6
STEPS = 3


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepseek-mtp")
    return folder, *save_with_module(folder, "DeepSeek-V3")


def serve(folder, **engine):
    """Completions, and per request and draft step the logits by position."""
    options = {"fed": {"architecture": "{}.mtp", "steps": STEPS, "drafting": engine.pop("drafting", False)}}
    with start(folder, {"fed": Fed}, options, **engine) as running:
        done = one_per_step(running, PROMPTS, greedy(TOKENS))
        assert_idle(running)
        return done, running.parts.host.plugin("fed").instance.logits


@pytest.mark.parametrize(("chunk", "drafting"), [(64, False), (1, False), (4, True)])
def test_the_module_says_what_transformers_says(deepseek, chunk, drafting):
    folder, model, module = deepseek
    done, logits = serve(folder, chunk=chunk, drafting=drafting)
    rows = {}
    for id, position, step, row in logits:
        rows.setdefault((id, step), {})[position] = row
    for one in done:
        ids = [*one.prompt_ids, *one.token_ids]
        (expected,) = module_logits(model, module, ids)
        found = rows[one.request_id, 0]
        assert len(found) >= len(ids) - TOKENS
        for position, row in found.items():
            torch.testing.assert_close(row, expected[position], atol=1e-3, rtol=1e-4)
        last = len(one.prompt_ids) - 1
        later = module_logits(model, module, [*one.prompt_ids, one.token_ids[0]], STEPS)
        for step in range(1, STEPS):
            torch.testing.assert_close(rows[one.request_id, step][last + step], later[step][0], atol=1e-3, rtol=1e-4)


def test_its_drafts_change_no_token(deepseek):
    folder, _, _ = deepseek
    with start(folder) as engine:
        plain = [one.token_ids for one in one_per_step(engine, PROMPTS, greedy(TOKENS))]
    done, _ = serve(folder, drafting=True)
    assert [one.token_ids for one in done] == plain


def test_a_target_alone_leaves_the_module_unread(deepseek):
    with start(deepseek[0]) as engine:
        assert not any("eh_proj" in bound.spec.name for bound in engine.parts.binder.bound)
