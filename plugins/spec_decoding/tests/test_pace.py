"""How many drafts pay, by its laws: within what is offered, more where more stays, nothing where nothing does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byref_spec_decoding.pace import LAST_PROBE, Clock, Offer, Pace

fates = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=12)
costs = st.dictionaries(st.integers(1, 40), st.floats(1e-4, 1.0), max_size=5)


def paced(fate, cost, *, drafting: bool = False, draft_seconds: float = 0.0) -> Pace:
    pace = Pace(adaptive=True, drafting=drafting)
    for drafted, accepted in fate:
        pace.verified("a", None, drafted, min(accepted, drafted))
    for rows, seconds in [*cost.items()] * 2:  # the first of each says nothing
        pace.target.measure(rows, seconds)
        pace.drafted(1, draft_seconds)
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
    pace = paced([(4, 0)] * 30, {1: 1.0, 2: 2.0, 9: 9.0})
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


@given(costs, st.integers(1, 50))
def test_a_clock_reads_between_its_measurements(cost, rows):
    clock = Clock()
    for n, seconds in [*((n, 9.0) for n in cost), *cost.items()]:  # the first of each says nothing
        clock.measure(n, seconds)
    assert clock.empty == (not cost)
    if not cost:
        assert clock(rows) == 0
        return
    below, above = [n for n in cost if n <= rows], [n for n in cost if n >= rows]
    if rows in cost:
        assert clock(rows) == pytest.approx(cost[rows])
    elif below and above:
        low, high = max(below), min(above)
        share = (rows - low) / (high - low)
        assert clock(rows) == pytest.approx(cost[low] * (1 - share) + cost[high] * share)
    else:
        assert clock(rows) == pytest.approx(cost[min(above)] if above else max(cost.values()))


def test_one_slow_step_does_not_decide():
    clock = Clock()
    for seconds in (50.0, 1.0, 1.0, 100.0, 1.0, 1.0):
        clock.measure(4, seconds)
    assert 1.0 <= clock(4) < 1.25


def test_a_machine_that_gets_slower_is_believed_at_every_width():
    clock = Clock()
    for rows in (1, 5, 9):
        for _ in range(2):
            clock.measure(rows, float(rows))
    for _ in range(60):
        clock.measure(5, 15.0)
    assert clock(5) == pytest.approx(15.0, rel=0.05)
    assert 1.0 < clock(1) < clock(5) < clock(9)
