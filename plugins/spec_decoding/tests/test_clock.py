"""Seconds by a count: read off between measurements, sceptical of one, and of few counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byref_spec_decoding.clock import Clock, coarse

costs = st.dictionaries(st.integers(1, 40), st.floats(1e-4, 1.0), max_size=5)


@given(st.integers(1, 10**6))
def test_few_counts_are_told_apart(rows):
    assert rows <= coarse(rows) <= 1.25 * rows
    assert coarse(coarse(rows)) == coarse(rows)
    assert len({coarse(n) for n in range(1, 513)}) <= 32


def test_beyond_the_largest_the_slope_goes_on():
    clock = Clock()
    for rows, seconds in ((1, 1.0), (5, 3.0)):
        for _ in range(2):
            clock.measure(rows, seconds)
    assert clock(9) == pytest.approx(5.0)


@given(costs, st.integers(1, 50))
def test_a_clock_reads_between_its_measurements(cost, rows):
    clock = Clock()
    cost = {n: seconds for n, seconds in cost.items() if coarse(n) == n}
    for n, seconds in [*((n, 9.0) for n in cost), *cost.items()]:  # the first of each says nothing
        clock.measure(n, seconds)
    assert clock.empty == (not cost)
    assert clock.knows(rows) == any(n <= coarse(rows) for n in cost)
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
    elif above:
        assert clock(rows) == pytest.approx(cost[min(above)])
    else:
        assert clock(rows) >= max(cost.values()) - 1e-9


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
