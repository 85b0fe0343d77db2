"""Extents never overlap, never hold the sink, and are found where there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byref.kv.extents import Extents

CAPACITY = 24
STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 10)), max_size=60)


@given(STEPS)
def test_it_hands_out_the_lowest_free_extent(steps):
    extents, owner, held = Extents(CAPACITY), dict.fromkeys(range(1, CAPACITY + 1)), []
    for number, (take, n) in enumerate(steps):
        if take:
            free = [b for b in owner if all(slot in owner and owner[slot] is None for slot in range(b, b + n))]
            base = extents.take(n)
            assert base == (free[0] if free else None)
            if base is not None:
                owner |= dict.fromkeys(range(base, base + n), number)
                held.append((base, n))
        elif held:
            base, size = held.pop(n % len(held))
            extents.give(base)
            owner |= dict.fromkeys(range(base, base + size))
        assert extents.used == sum(size for _, size in held)


def test_the_whole_and_no_more():
    extents = Extents(4)
    assert extents.take(5) is None
    assert extents.take(4) == 1
    assert extents.take(1) is None
    extents.give(1)
    assert extents.used == 0
