"""What the prefix cache tells others about its pages. Knows digests and tokens; no page is named by its number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Digest = bytes


@dataclass(frozen=True, slots=True)
class PageStored:
    """A full page can be found now."""

    digest: Digest
    before: Digest
    """Digest of the page before it, or of the request's key where it is the first."""
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PageRemoved:
    """A page can no longer be found: it was evicted."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class CacheReset:
    """No page can be found any more."""


Event = PageStored | PageRemoved | CacheReset
Listener = Callable[[Event], None]
