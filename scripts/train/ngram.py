"""What the models have to beat: an n-gram model of bytes, and drafts looked up in the text so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from train.data import VOCABULARY

Ids = NDArray[np.int64]


class NGram:
    """An interpolated n-gram model with Witten-Bell smoothing: every order leaves to the one below what it lacks."""

    def __init__(self, tokens: Ids, order: int) -> None:
        self.levels = [self._counts(tokens, width) for width in range(order)]

    @staticmethod
    def _counts(tokens: Ids, width: int) -> tuple[Ids, Ids, Ids, Ids, Ids]:
        """Sorted pairs (context of `width`, token) and their counts; contexts, their counts, their different tokens."""
        contexts = coded(tokens, width)[: len(tokens) - width]
        pairs, pair_counts = np.unique(contexts * VOCABULARY + tokens[width:], return_counts=True)
        heads, first, kinds = np.unique(pairs // VOCABULARY, return_index=True, return_counts=True)
        return pairs, pair_counts, heads, np.add.reduceat(pair_counts, first), kinds

    def bits(self, windows: Ids) -> float:
        """Mean bits per token of windows [count, length], each token given those before it in its window."""
        total = 0.0
        for window in windows:
            chance = np.full(len(window) - 1, 1.0 / VOCABULARY)
            for width, level in enumerate(self.levels):
                at = np.arange(max(1, width), len(window))
                codes = coded(window, width)[at - width]
                chance[at - 1] = self._mixed(level, codes, window[at], chance[at - 1])
            total -= np.log2(chance).sum()
        return float(total) / (windows.shape[0] * (windows.shape[1] - 1))

    @staticmethod
    def _mixed(
        level: tuple[Ids, Ids, Ids, Ids, Ids], codes: Ids, tokens: Ids, below: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        pairs, pair_counts, heads, counts, kinds = level
        seen, sums = found(heads, counts, codes)
        _, different = found(heads, kinds, codes)
        _, hits = found(pairs, pair_counts, codes * VOCABULARY + tokens)
        return np.where(seen, (hits + different * below) / np.maximum(1, sums + different), below)


def coded(tokens: Ids, width: int) -> Ids:
    """One number for the `width` tokens from each place on."""
    codes = np.zeros(len(tokens) - width + 1, dtype=np.int64)
    for i in range(width):
        codes = codes * VOCABULARY + tokens[i : len(tokens) - width + 1 + i]
    return codes


def found(keys: Ids, values: Ids, wanted: Ids) -> tuple[NDArray[np.bool_], Ids]:
    """Whether each of `wanted` is among the sorted `keys`, and its value or 0."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = keys[at] == wanted
    return hit, np.where(hit, values[at], 0)


def lookup(text: Sequence[int], count: int, longest: int, shortest: int = 1) -> list[int]:
    """Prompt lookup: up to `count` tokens behind the latest earlier place of the longest suffix that has one."""
    tokens = np.asarray(text)
    for width in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        codes = np.lib.stride_tricks.sliding_window_view(tokens, width)
        places = (codes[:-1] == codes[-1]).all(axis=1).nonzero()[0]
        if len(places):
            start = int(places[-1]) + width
            return tokens[start : start + count].tolist()
    return []
