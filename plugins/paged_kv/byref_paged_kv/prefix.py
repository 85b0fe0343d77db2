"""Chained hashes of token pages, and who holds what they stand for. Knows tokens and keys; not where a page lies."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from byref_paged_kv.events import Digest

CacheKey = tuple[tuple[str, type, Hashable], ...]
"""Everything but tokens that sets a request's entries apart: part by part its name, type and value."""


def typed(parts: Mapping[str, Hashable]) -> CacheKey:
    """The parts of a request's cache key with their types: 1, True and "1" are three keys."""
    return tuple((name, type(parts[name]), parts[name]) for name in sorted(parts))


def root(key: CacheKey) -> Digest:
    """Where the chain of a cache key begins."""
    return _digest(b"", repr(key).encode())


def chain(start: Digest, tokens: Sequence[int], size: int) -> Iterator[Digest]:
    """One digest per full page of `tokens`; each stands for all tokens up to the page's end."""
    before = start
    for first in range(0, len(tokens) - size + 1, size):
        before = _digest(before, array("q", tokens[first : first + size]).tobytes())
        yield before


@lru_cache(maxsize=256)
def chained(start: Digest, tokens: tuple[int, ...], size: int) -> tuple[Digest, ...]:
    """As `chain`. A request that waits asks again at every step."""
    return tuple(chain(start, tokens, size))


def _digest(before: Digest, content: bytes) -> Digest:
    return hashlib.blake2b(before + content, digest_size=32).digest()


class Content(NamedTuple):
    """What a published page holds."""

    digest: Digest
    key: CacheKey
    tokens: tuple[int, ...]


class Index:
    """Which page holds what a digest stands for."""

    def __init__(self) -> None:
        self._pages: dict[Digest, int] = {}
        self._contents: dict[int, Content] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, content: Content) -> int:
        """The page, if its key and its own tokens are those asked for (a digest alone is not believed); else 0."""
        page = self._pages.get(content.digest, 0)
        return page if page and self._contents[page] == content else 0

    def put(self, content: Content, page: int) -> bool:
        """Publish a page whose rows are computed and accepted; the first page of a digest stays."""
        if content.digest in self._pages or page in self._contents:
            return False
        self._pages[content.digest] = page
        self._contents[page] = content
        return True

    def holds(self, page: int) -> bool:
        """Whether the page is published."""
        return page in self._contents

    def forget(self, page: int) -> Digest:
        """The page is needed for something else; what it stood for."""
        content = self._contents.pop(page)
        del self._pages[content.digest]
        return content.digest

    def clear(self) -> list[int]:
        """Forget every page; returns them."""
        pages = list(self._contents)
        self._contents.clear()
        self._pages.clear()
        return pages
