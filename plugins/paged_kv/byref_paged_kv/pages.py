"""Who holds which page. Knows numbers only: no token, no tensor, no request."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence


class Pages:
    """Pages 1 .. count, each free, held by some number of owners, or cached: held by none, and kept for its content
    until it is needed. Page 0 is the null page and never handed out.
    """

    def __init__(self, count: int, evicted: Callable[[int], object]) -> None:
        self.count = count
        self._evicted = evicted
        self._free = set(range(1, count + 1))
        self._lowest = list(range(1, count + 1))
        """A heap with every free page, and some that are not free any more."""
        self._listed = set(self._free)
        """What is in the heap."""
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

    def holders(self, page: int) -> int:
        """How many hold the page."""
        return self._holders.get(page, 0)

    def take(self, n: int, after: int = 0) -> list[int] | None:
        """n pages with one holder each; None if too few. Free ones first, if it can be those that follow page `after`
        or one another (what lies in a row can be read in place), then the cached ones unused for longest."""
        if n > self.available:
            return None
        taken: list[int] = []
        while len(taken) < n and self._free:
            after = self._next(after)
            taken.append(after)
        taken += sorted(self._evict() for _ in range(n - len(taken)))
        self._holders |= dict.fromkeys(taken, 1)
        return taken

    def _next(self, after: int) -> int:
        """A free page, the one after `after` if that is free."""
        page = after + 1
        if not after or page not in self._free:
            page = self._pop()
            while page not in self._free:
                page = self._pop()
        self._free.remove(page)
        return page

    def _pop(self) -> int:
        page = heapq.heappop(self._lowest)
        self._listed.remove(page)
        return page

    def _give(self, page: int) -> None:
        self._free.add(page)
        if page not in self._listed:
            self._listed.add(page)
            heapq.heappush(self._lowest, page)

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
                self._give(page)

    def forget(self, page: int) -> None:
        """Its content is of no use any more; a cached page becomes free."""
        if page in self._cached:
            del self._cached[page]
            self._give(page)

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        self.evictions += 1
        self._evicted(page)
        return page
