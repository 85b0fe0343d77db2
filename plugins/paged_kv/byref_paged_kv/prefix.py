"""Chained hashes of token pages. Knows tokens and keys; must not know where a page lies or who holds it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence

Digest = bytes


def root(parts: Mapping[str, Hashable]) -> Digest:
    """Where a chain begins: everything but tokens that sets a request's entries apart, each part with its type."""
    typed = sorted((name, type(value).__qualname__, repr(value)) for name, value in parts.items())
    return _digest(b"", repr(typed).encode())


def chain(start: Digest, tokens: Sequence[int], size: int) -> Iterator[Digest]:
    """One digest per full page of `tokens`; each stands for all tokens up to the page's end."""
    before = start
    for first in range(0, len(tokens) - size + 1, size):
        before = _digest(before, array("q", tokens[first : first + size]).tobytes())
        yield before


def _digest(before: Digest, content: bytes) -> Digest:
    return hashlib.blake2b(before + content, digest_size=32).digest()


class Index:
    """Which page holds what a digest stands for."""

    def __init__(self) -> None:
        self._pages: dict[Digest, int] = {}
        self._entries: dict[int, tuple[Digest, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, digest: Digest, tokens: Sequence[int]) -> int | None:
        """The page, if its own tokens are `tokens`: a digest alone is not believed."""
        page = self._pages.get(digest)
        return page if page is not None and self._entries[page][1] == tuple(tokens) else None

    def put(self, digest: Digest, tokens: Sequence[int], page: int) -> None:
        """Publish a page whose rows are computed and accepted; the first page of a digest stays."""
        if digest not in self._pages and page not in self._entries:
            self._pages[digest] = page
            self._entries[page] = digest, tuple(tokens)

    def holds(self, page: int) -> bool:
        """Whether the page is published."""
        return page in self._entries

    def forget(self, page: int) -> None:
        """The page is needed for something else."""
        entry = self._entries.pop(page, None)
        if entry is not None:
            del self._pages[entry[0]]

    def clear(self) -> list[int]:
        """Forget every page; returns them."""
        pages = list(self._entries)
        self._entries.clear()
        self._pages.clear()
        return pages
