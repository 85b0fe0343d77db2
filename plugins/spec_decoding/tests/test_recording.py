"""A forward that is recorded between the steps of a round leaves what they pass on: drafts are those made eagerly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles import drafter, start_with
from engines import together

from byref.contract import SamplingParams

TRAINED = Path(__file__).parents[3] / "tests" / "data" / "checkpoints"
PROMPTS = [prompt[:40] for prompt in json.loads((TRAINED / "held_out.json").read_text())["prompts"][:2]]
CASES = {
    "eagle": ("bytes-llama", {"options": {"model": str(TRAINED / "bytes-llama-eagle3")}, "max_draft_tokens": 3}),
    "tree": (
        "bytes-llama",
        {"options": {"model": str(TRAINED / "bytes-llama-eagle3")}, "max_draft_tokens": 6, "tree": True},
    ),
    "mtp": ("bytes-deepseek", {"max_draft_tokens": 3}),
}


def proposed(case: str, capture: str) -> list:
    """What is drafted, step by step."""
    target, table = CASES[case]
    with start_with(TRAINED / target, "mtp" if case == "mtp" else "eagle", table, capture=capture) as engine:
        seen, propose = [], drafter(engine).propose

        def noted(round):
            drafts = propose(round)
            seen.append([(draft.tokens, draft.parents) for draft in drafts.values()])
            return drafts

        drafter(engine).propose = noted
        together(engine, PROMPTS, SamplingParams(max_tokens=8, ignore_eos=True))
        return seen


@pytest.mark.parametrize("case", CASES)
def test_recording_leaves_what_a_round_passes_on(case):
    assert proposed(case, "tape") == proposed(case, "off")
