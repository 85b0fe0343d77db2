"""A drafter that paused, or was never asked, knows as much afterwards: what it drafts is what it would have drafted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles import assert_idle_with, drafter, start_with
from engines import finish, together

from byref.contract import SamplingParams
from byref_spec_decoding.pace import Pace

TRAINED = Path(__file__).parents[3] / "tests" / "data" / "checkpoints"
PROMPTS = [prompt[:40] for prompt in json.loads((TRAINED / "held_out.json").read_text())["prompts"][:2]]
PARAMS = SamplingParams(max_tokens=40, temperature=0.7, top_k=40, seed=1, ignore_eos=True)
EAGLE = {"options": {"model": str(TRAINED / "bytes-llama-eagle3")}}
CASES = {
    "draft_model": ("bytes-llama", {"options": {"model": str(TRAINED / "bytes-llama")}, "max_draft_tokens": 3}),
    "self": ("bytes-llama", {"options": {"layers": 1, "weights": "target"}, "max_draft_tokens": 3}),
    "eagle": ("bytes-llama", {**EAGLE, "max_draft_tokens": 3}),
    "tree": ("bytes-llama", {**EAGLE, "max_draft_tokens": 6, "tree": True}),
    "mtp": ("bytes-deepseek", {"max_draft_tokens": 3}),
    "suffix": ("bytes-llama", {"options": {"remember": 0}, "max_draft_tokens": 3}),
    "ngram": ("bytes-llama", {"max_draft_tokens": 3}),
}


def proposed(case: str, monkeypatch, pause: range) -> tuple[dict, list]:
    """By prompt and number of tokens known, what is drafted; and the completions. In the rounds of `pause` every width
    is 0."""
    target, table = CASES[case]
    rounds = {"n": 0}

    def widths(self, offers, rows):
        rounds["n"] += 1
        return [0 if rounds["n"] in pause else offer.most for offer in offers]

    monkeypatch.setattr(Pace, "widths", widths)
    name = {"tree": "eagle"}.get(case, case)
    with start_with(TRAINED / target, name, table) as engine:
        seen, propose = {}, drafter(engine).propose

        def noted(round):
            drafts = propose(round)
            for want in round.wants:
                if want.request.id in drafts and want.most == table["max_draft_tokens"]:
                    draft = drafts[want.request.id]
                    seen[want.request.prompt, len(want.request.tokens)] = draft.tokens, draft.parents
            return drafts

        drafter(engine).propose = noted
        done = together(engine, PROMPTS, PARAMS)
        assert_idle_with(engine)
        return seen, done


@pytest.mark.parametrize("case", CASES)
def test_drafts_after_a_pause_are_those_without(case, monkeypatch):
    whole, done = proposed(case, monkeypatch, range(0))
    paused, again = proposed(case, monkeypatch, range(3, 15))
    assert [one.token_ids for one in again] == [one.token_ids for one in done]
    both = whole.keys() & paused.keys()
    # The pause makes 12 tokens and more at which only a drafter that needs no width drafts.
    later = [key for key in both if key[1] > len(key[0]) + 16]
    assert later
    assert {key: paused[key] for key in both} == {key: whole[key] for key in both}


@pytest.mark.parametrize("case", ["draft_model", "eagle", "mtp"])
def test_a_request_that_is_off_takes_nothing_from_its_neighbour(case):
    target, table = CASES[case]
    name = {"tree": "eagle"}.get(case, case)
    accepted = []
    for off in (False, True):
        with start_with(TRAINED / target, name, table) as engine:
            options = {"spec_decoding": {"max_draft_tokens": 0}} if off else None
            ids = [engine.add(PROMPTS[1], PARAMS, options=options), engine.add(PROMPTS[0], PARAMS)]
            done = finish(engine, ids)
            assert_idle_with(engine)
            assert (done[0].drafts.drafted == 0) == off
            accepted.append((done[1].token_ids, done[1].drafts.accepted))
    assert accepted[0] == accepted[1]
