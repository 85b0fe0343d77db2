"""The host-side parts by their laws: counted runs, guesses, matches, widths, measured time, packed windows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byref.contract.step import Wanted, Window
from byref_spec_decoding.drafters.ngram import NgramOptions, _History
from byref_spec_decoding.pace import LAST_PROBE, Clock, Offer, Pace
from byref_spec_decoding.rollout import pack
from byref_spec_decoding.trie import Cursor, Node, Trie, guess

texts = st.lists(st.integers(0, 3), max_size=24)
depths = st.integers(2, 6)


def runs(text: list[int], depth: int) -> Counter[tuple[int, ...]]:
    """Every run of up to `depth` tokens, and how often it stands there."""
    spans = ((start, size) for start in range(len(text)) for size in range(1, depth + 1))
    return Counter(tuple(text[start : start + size]) for start, size in spans if start + size <= len(text))


def counted(node: Node, before: tuple[int, ...] = ()) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for token, child in node.next.items():
        found[*before, token] = child.count
        found += counted(child, (*before, token))
    return found


@given(st.lists(texts, max_size=4), depths)
def test_a_trie_counts_every_run_and_forgets_what_is_removed(added, depth):
    trie = Trie(depth)
    for text in added:
        trie.add(text)
    expected = sum((runs(text, depth) for text in added), Counter())
    assert counted(trie.root) == expected
    for text in reversed(added):
        trie.remove(text)
        expected -= runs(text, depth)
        assert counted(trie.root) == expected
    assert not trie.root.next


@given(texts, st.lists(st.integers(0, 24), max_size=5), depths)
def test_a_growing_sequence_is_counted_as_the_whole(text, ends, depth):
    grown, whole = Trie(depth), Trie(depth)
    cursor = Cursor(grown)
    for end in [*sorted(ends), len(text)]:
        cursor.extend(text[:end])
    whole.add(text)
    assert counted(grown.root) == counted(whole.root)


@given(texts, texts, depths, st.integers(1, 3))
def test_the_longest_match_is_the_longest(text, context, depth, shortest):
    trie = Trie(depth)
    trie.add(text)
    followed = {run[:-1] for run in runs(text, depth)}
    sizes = [n for n in range(shortest, min(depth - 1, len(context)) + 1) if tuple(context[-n:]) in followed]
    node, size = trie.longest(context, shortest)
    assert size == max(sizes, default=0)
    assert node is (trie.find(context[-size:]) if size else None)


@given(texts, texts, depths, st.integers(0, 9), st.sampled_from([0.0, 0.2, 0.6]), st.booleans())
def test_guesses_are_well_formed(text, more, depth, most, likely, tree):
    trie, context = Trie(depth), [*more, *text[-4:]]
    trie.add(text)
    found = guess(trie, context, most, shortest=1, likely=likely, tree=tree)
    assert len(found.tokens) == len(found.parents) <= most
    assert all(-1 <= parent < i for i, parent in enumerate(found.parents))
    if not tree:
        assert found.parents == list(range(-1, len(found.tokens) - 1))
    assert len({*zip(found.parents, found.tokens, strict=True)}) == len(found.tokens)
    chances = [
        guess(trie, context, n, shortest=1, likely=likely, tree=tree).expected for n in range(len(found.tokens) + 1)
    ]
    steps = [after - before for before, after in zip(chances, chances[1:], strict=False)]
    assert all(likely - 1e-9 <= step <= 1 + 1e-9 for step in steps)
    assert all(after <= before + 1e-9 for before, after in zip(steps, steps[1:], strict=False))
    assert found.expected == pytest.approx(sum(steps))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 3), st.integers(1, 9))
def test_prompt_lookup_finds_the_latest_longest_match(tokens, shortest, more, first):
    history = _History(NgramOptions(shortest=shortest, longest=shortest + more))
    for end in (*range(min(first, len(tokens)), len(tokens), 3), len(tokens)):
        history.extend(tokens[:end])
    assert history.match(tokens) == latest_longest(tokens, shortest, shortest + more)


def latest_longest(tokens: list[int], shortest: int, longest: int) -> tuple[int, int]:
    for size in range(min(longest, len(tokens)), shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                return end, size
    return 0, 0


fates = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=12)
costs = st.dictionaries(st.integers(1, 40), st.floats(1e-4, 1.0), max_size=5)


def paced(fate, cost, *, drafting: bool = False, draft_seconds: float = 0.0) -> Pace:
    pace = Pace(adaptive=True, drafting=drafting)
    for drafted, accepted in fate:
        pace.verified("a", None, drafted, min(accepted, drafted))
    for rows, seconds in cost.items():
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
    gaps = [after - before for before, after in zip(probes, probes[1:], strict=False)]
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
    for n, seconds in cost.items():
        clock.measure(n, seconds)
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
    for seconds in (1.0, 1.0, 100.0, 1.0, 1.0):
        clock.measure(4, seconds)
    assert 1.0 <= clock(4) < 1.2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=6), st.integers(1, 16))
def test_packing_keeps_order_and_rows_within_the_most(spans, most):
    windows = [
        Window(f"r{i}", i + 1, "draft", start, tuple(range(start, start + n))) for i, (start, n) in enumerate(spans)
    ]
    packed = list(pack(windows, most))
    assert all(0 < sum(len(piece.tokens) for piece in one) <= most for one in packed)
    assert all(piece.tokens for one in packed for piece in one)
    assert all(len({piece.request for piece in one}) == len(one) for one in packed)
    pieces = [piece for one in packed for piece in one]
    for window in windows:
        mine = [piece for piece in pieces if piece.request == window.request]
        assert [token for piece in mine for token in piece.tokens] == list(window.tokens)
        assert [piece.start for piece in mine] == [piece.tokens[0] for piece in mine]
        assert [piece.wanted for piece in mine] == [Wanted.NONE] * (len(mine) - 1) + [window.wanted]
    assert [piece.request for piece in pieces] == sorted((p.request for p in pieces), key=lambda r: int(r[1:]))
