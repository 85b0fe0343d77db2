"""How many drafts pay, by its laws: within what is offered, more where more stays, nothing where nothing does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byref_spec_decoding.pace import BUDGET, LAST_PROBE, Offer, Pace

fates = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=12)
STEPS = 800
costs = st.dictionaries(st.integers(1, 40), st.floats(1e-4, 1.0), max_size=5)


def paced(fate, cost, *, drafting: bool = False, draft_seconds: float = 0.0) -> Pace:
    pace = Pace(adaptive=True, drafting=drafting)
    for drafted, accepted in fate:
        pace.verified("a", None, drafted, min(accepted, drafted))
    for rows, seconds in [*cost.items()] * 2:  # the first of each says nothing
        for drafts in (0, 1):
            pace.stepped(rows, drafts, seconds)
        pace.drafted(1, 1, draft_seconds, late=False)
    return pace


@given(fates, costs, st.lists(st.integers(0, 8), min_size=1, max_size=5), st.booleans(), st.floats(0, 0.1))
def test_widths_stay_within_what_is_offered(fate, cost, most, drafting, draft_seconds):
    pace = paced(fate, cost, drafting=drafting, draft_seconds=draft_seconds)
    offers = [Offer("abcde"[i], n) for i, n in enumerate(most)]
    for _ in range(2 * LAST_PROBE // len(most)):
        widths = pace.widths(offers, len(offers))
        assert all(0 <= width <= n for width, n in zip(widths, most, strict=True))
    assert Pace(adaptive=False, drafting=drafting).widths(offers, len(offers)) == most


@given(st.floats(0.01, 1.0), st.integers(1, 8))
def test_widths_grow_with_acceptance(slope, most):
    """In time that grows with the number of rows."""
    cost = {1: 1.0, 9: 1.0 + 8 * slope}
    widths = [paced([(4, kept)] * 20, cost).widths([Offer("a", most)], 1)[0] for kept in range(5)]
    assert widths == sorted(widths)


def test_what_never_stays_and_costs_gets_nothing_but_a_probe():
    pace = paced([(4, 0)] * 30, {1: 0.001, 2: 0.002, 9: 0.009})
    widths = [pace.widths([Offer("a", 8)], 1)[0] for _ in range(600)]
    assert set(widths) == {0, 1}
    probes = [i for i, width in enumerate(widths) if width]
    gaps = [after - before for before, after in pairwise(probes)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == LAST_PROBE
    assert pace.hopeless("a")
    pace.verified("a", None, 1, 1)
    assert not pace.hopeless("a")


@given(st.integers(0, 8), st.integers(1, 16))
def test_what_is_free_gets_everything(most, rows):
    pace = paced([(4, 1)] * 5, {1: 0.5, 400: 0.5})
    assert pace.widths([Offer("a", most)] * rows, rows) == [most] * rows


@pytest.mark.parametrize("drafting", [True, False])
def test_what_a_step_costs_without_drafts_is_known_before_there_are_any(drafting):
    """Else the first steps, full of drafts, would be all there is to compare with."""
    pace = Pace(adaptive=True, drafting=drafting)
    offers = [Offer("a", 8), Offer("b", 0)]
    for _ in range(2):
        assert pace.widths(offers, 2) == [0, 0]
        pace.stepped(2, 0, 1.0)
    if drafting:  # and a drafting forward before many
        for _ in range(2):
            assert pace.widths(offers, 2) == [1, 0]
            pace.drafted(1, 1, 0.001, late=False)
    assert pace.widths(offers, 2) == [8, 0]
    assert pace.widths(offers, 1) == [0, 0]
    assert pace.widths(offers, 3) == [8, 0]


@settings(max_examples=15)
@given(st.integers(1, 12), st.floats(0.05, 2.0), st.floats(0.0, 1.0))
def test_what_does_not_pay_takes_little_of_the_time(requests, draft_seconds, rate):
    """However many requests would try it, and however long that takes."""
    pace = paced([(4, round(4 * rate))] * 20, {1: 0.02, 40: 0.02, 80: 0.04}, drafting=True, draft_seconds=draft_seconds)
    offers = [Offer(str(i), 4) for i in range(requests)]
    spent = 0.0
    for _ in range(STEPS):
        drawn = sum(width > 0 for width in pace.widths(offers, requests))
        pace.stepped(requests + drawn, drawn, 0.02)
        if drawn:
            pace.drafted(drawn, 1, draft_seconds, late=True)
            spent += draft_seconds
    assert spent <= BUDGET * STEPS * 0.02 + 0.25 + draft_seconds


def test_a_draft_makes_a_step_as_slow_as_steps_with_drafts_are():
    """Sixteen rows of sixteen requests say nothing about sixteen of eight."""
    pace = paced([(1, 1)] * 20, {8: 0.026, 16: 0.03})
    assert pace.widths([Offer("a", 8)], 8) == [8]
    for _ in range(40):
        pace.stepped(16, 1, 0.08)
        pace.stepped(16, 0, 0.03)
    assert pace.widths([Offer("a", 8)], 8) == [0]
