"""The host-side parts by their laws: counted runs, guesses, matches, packed windows."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byref.contract.step import Wanted, Window
from byref_spec_decoding.drafters.ngram import NgramOptions, _History
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
    steps = [after - before for before, after in pairwise(chances)]
    assert all(likely - 1e-9 <= step <= 1 + 1e-9 for step in steps)
    assert all(after <= before + 1e-9 for before, after in pairwise(steps))
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
