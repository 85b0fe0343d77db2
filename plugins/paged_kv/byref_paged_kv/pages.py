"""Who holds which page. Knows numbers only: no token, no tensor, no request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class Pages:
    """Pages 1 .. count, each free, held by some number of owners, or cached: held by none, and kept for its content
    until it is needed. Page 0 is the null page and never handed out.
    """

    def __init__(self, count: int, evicted: Callable[[int], object]) -> None:
        self.count = count
        self._evicted = evicted
        self._free = list(range(count, 0, -1))
        self._holders: dict[int, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.evictions = 0

    @property
    def available(self) -> int:
        """Pages that `take` could hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return len(self._holders)

    @property
    def cached(self) -> int:
        """Pages that nobody holds and whose content is kept."""
        return len(self._cached)

    def take(self, n: int) -> list[int] | None:
        """n pages with one holder each, free ones first, then the cached ones unused for longest; None if too few."""
        if n > self.available:
            return None
        taken = []
        for _ in range(n):
            page = self._free.pop() if self._free else self._evict()
            self._holders[page] = 1
            taken.append(page)
        return taken

    def hold(self, page: int) -> None:
        """One holder more; a cached page is in use again."""
        self._cached.pop(page, None)
        self._holders[page] = self._holders.get(page, 0) + 1

    def drop(self, pages: Sequence[int], keeps: Callable[[int], bool]) -> None:
        """One holder less for each, the last first, so that the end of a sequence is evicted before its beginning.
        A page without holders is cached where `keeps` says its content is of use."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if keeps(page):
                self._cached[page] = None
            else:
                self._free.append(page)

    def forget(self, page: int) -> None:
        """Its content is of no use any more; a cached page becomes free."""
        if page in self._cached:
            del self._cached[page]
            self._free.append(page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one holds it."""
        return self._holders.get(page, 0) > 1

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        self.evictions += 1
        self._evicted(page)
        return page
