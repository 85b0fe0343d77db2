"""Rejection sampling of one draft, without an engine: tokens come as often as the target's distribution says."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rows import PROMPT

from byref.contract import LogitRows, Request, RowInfo, SamplingParams, Window
from byref.contract.step import Wanted
from byref_spec_decoding import odds

TARGET = torch.tensor([0.45, 0.3, 0.15, 0.1]).log()
DRAFTER = torch.tensor([0.05, 0.15, 0.2, 0.6]).log()
TOKENS = torch.arange(4)
SEEDS = 4000


def one(seed: int, target: torch.Tensor = TARGET, drafter: torch.Tensor = DRAFTER, **params) -> tuple[int, int]:
    """(the draft, the token that comes)."""
    request = Request("r", PROMPT, SamplingParams(temperature=1.0, **params), seed, tokens=[*PROMPT])
    draft, of = odds.draw(TOKENS, drafter, request, len(PROMPT))
    window = Window("r", 1, "target", len(PROMPT) - 1, (PROMPT[-1], draft), 1, wanted=Wanted.DRAFTS)
    rows = LogitRows(target[None], (RowInfo(request, window, 0, len(PROMPT), ()),))
    return draft, odds.decide(rows, [0], {"r": [of]})[0]


def deviation(pairs) -> float:
    """The largest of any token, in standard deviations."""
    counts = Counter(token for _, token in pairs)
    return max(abs(counts[i] - SEEDS * p) / math.sqrt(SEEDS * p * (1 - p)) for i, p in enumerate(TARGET.exp().tolist()))


def test_tokens_come_as_often_as_the_target_says():
    pairs = [one(seed) for seed in range(SEEDS)]
    assert deviation(pairs) < 4
    overlap = float(torch.minimum(TARGET.exp(), DRAFTER.exp()).sum())
    kept = sum(draft == token for draft, token in pairs)
    assert abs(kept - SEEDS * overlap) < 4 * math.sqrt(SEEDS * overlap * (1 - overlap))


@pytest.mark.parametrize("shared", ["DRAWS", "FATES"])
def test_noise_that_is_used_twice_is_seen(monkeypatch, shared):
    """Drafts are drawn, or kept, by the noise of what replaces them."""
    monkeypatch.setattr(odds, shared, 0)
    assert deviation([one(seed) for seed in range(SEEDS)]) > 5


WEIGHTS = st.lists(st.floats(-9, 9) | st.just(-math.inf), min_size=4, max_size=4).filter(lambda w: max(w) > -math.inf)


@given(target=WEIGHTS, drafter=WEIGHTS, seed=st.integers(0, 2**62), top_k=st.integers(0, 3), top_p=st.floats(0.2, 1))
def test_what_comes_is_what_the_target_could_draw(target, drafter, seed, top_k, top_p):
    draft, token = one(seed, torch.tensor(target), torch.tensor(drafter), top_k=top_k, top_p=top_p)
    assert target[token] > -math.inf
    assert drafter[draft] > -math.inf
    if top_k == 1:
        assert target[token] == max(target)


def test_a_drafter_that_is_the_target_is_always_right():
    assert all(draft == token for draft, token in (one(seed, TARGET, TARGET) for seed in range(500)))


def test_the_rest_of_a_distribution():
    of = odds.Odds(torch.tensor([9, 3, 5]), torch.tensor([0.5, 0.25, 0.25]))
    left = of.taken_from(torch.tensor([1, 3, 5]), torch.tensor([0.5, 0.375, 0.125]))
    assert left.tolist() == [0.5, 0.125, 0.0]
    assert [of.of(token) for token in (9, 3, 4)] == [0.5, 0.25, 0.0]
