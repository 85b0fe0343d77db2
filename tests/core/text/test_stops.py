"""Stop strings are found wherever the text is cut, and no part of one is shown."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from byref.text import StopScanner

LETTERS = st.text("ab\n", max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3)


def pieces_of(text, cuts):
    """`text` cut at the given places."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


def scanned(text, stops, cuts):
    scanner, shown = StopScanner(stops), ""
    for piece in pieces_of(text, cuts):
        emit, stopped = scanner.push(piece)
        shown += emit
        yield shown, stopped
    yield shown + scanner.flush(), False


def oracle(text, stops):
    """The text before the stop string that is complete first, seen one character at a time."""
    for end in range(1, len(text) + 1):
        ends = [stop for stop in stops if text[:end].endswith(stop)]
        if ends:
            return text[: end - max(map(len, ends))], True
    return text, False


@given(LETTERS, STOPS, st.lists(st.integers(0, 30), max_size=6))
@example("abab", ["abab", "ba"], [1, 2, 3])
@example("aab", ["ab"], [1, 2])
def test_the_text_is_cut_at_the_first_stop(text, stops, cuts):
    expected, stops_at_all = oracle(text, stops)
    *steps, last = scanned(text, stops, cuts)
    assert any(stopped for _, stopped in steps) is stops_at_all
    assert last[0] == expected
    assert all(expected.startswith(shown) for shown, _ in steps)


@given(st.text("xy", max_size=12), st.text("xy", min_size=1, max_size=3), st.lists(st.integers(0, 30), max_size=6))
def test_one_stop_is_a_split(text, stop, cuts):
    assert list(scanned(text, [stop], cuts))[-1][0] == text.split(stop)[0]


def test_only_what_may_begin_a_stop_is_held():
    scanner = StopScanner(["\nUser:"])
    assert scanner.push("Hello\n") == ("Hello", False)
    assert scanner.push("Us") == ("", False)
    assert scanner.push("ual") == ("\nUsual", False)
    assert scanner.push("\nUser: hi") == ("", True)
    assert scanner.push("more") == ("", True)
    assert scanner.flush() == ""


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stops_everything_passes(stops):
    assert StopScanner(stops).push("anything") == ("anything", False)
