"""Page tables, and where an entry lies by them. Knows pages and request rows; must not know tokens or who shares."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from byref.contract.roles import Sizing
from byref.kv import Geometry, Space
from byref_paged_kv.pages import Pages
from byref_paged_kv.prefix import Index


class PagedSpace(Space):
    """Pages of `per_page` entries, found by a table [request rows, pages of a request]: page 0 is the null page.

    Entry e of a request row lies at table[row, e // per_page] * per_page + e % per_page. Behind the pages come the
    stages, a fixed one per request row.
    """

    def __init__(self, geometry: Geometry, sizing: Sizing, page_tokens: int, count: int) -> None:
        self.geometry = geometry
        self.page_tokens, self.per_page = page_tokens, page_tokens // geometry.stride
        self.index = Index()
        self.on_evict: Callable[[int], object] = self.index.forget
        """Told of a published page that is needed for something else."""
        self.pages = Pages(count, self._evicted)
        window = geometry.window
        self.reach = -(-window // self.per_page) if window is not None else 1 << 62
        """Pages before a page's end that the window reaches into; more than there are without a window."""
        self.slots = (count + 1) * self.per_page + (sizing.max_requests + 1) * geometry.stage
        self.held: dict[int, list[int]] = {}
        """Pages of each request row in order; 0 where one was given back because it fell behind the window."""
        width = -(-(sizing.max_context + sizing.max_drafts) // self.page_tokens)
        self._host = torch.zeros(sizing.max_requests + 1, width, dtype=torch.int64)
        on_cpu = sizing.device.type == "cpu"
        self._table = self._host if on_cpu else self._host.to(sizing.device)
        self._stage_base = (count + 1) * self.per_page

    def _evicted(self, page: int) -> None:
        self.on_evict(page)  # looked up now: it is set after this object is made

    def missing(self, row: int, tokens: int) -> int:
        """Pages that the row lacks for so many tokens."""
        return max(-(-tokens // self.page_tokens) - len(self.held.get(row, ())), 0)

    def grow(self, row: int, count: int) -> None:
        """Add so many pages, which must be available, at the end of the row's own."""
        if count:
            own = self.held.get(row)
            self.extend(row, self.pages.take(count, own[-1] if own else 0) or [])

    def extend(self, row: int, pages: list[int]) -> None:
        """Add pages at the end of the row's own; the row holds them already."""
        own = self.held.setdefault(row, [])
        at = len(own)
        own += pages
        self._host[row, at : len(own)] = torch.tensor(pages, dtype=torch.int64)

    def share(self, row: int, pages: list[int]) -> None:
        """Start a row with pages that others may hold too; 0 stands for one that it does not need."""
        for page in filter(None, pages):
            self.pages.hold(page)
        self.extend(row, pages)

    def fork(self, row: int, child: int, tokens: int) -> None:
        """Start request row `child` with the pages that hold the first `tokens` tokens of `row`. The last one may be
        partial: who writes to it first needs one of his own."""
        self.share(child, self.held[row][: -(-tokens // self.page_tokens)])

    def is_shared(self, row: int, tokens: int) -> bool:
        """Whether others hold the page that the row's entries after so many tokens go to."""
        own, at = self.held.get(row, ()), tokens // self.page_tokens
        return at < len(own) and own[at] > 0 and self.pages.holders(own[at]) > 1

    def part(self, row: int, tokens: int) -> list[tuple[int, int]]:
        """Give the row a page of its own for that one; slots to copy, (from, to)."""
        at = tokens // self.page_tokens
        shared = self.held[row][at]
        (own,) = self.pages.take(1) or [0]
        self.replace(row, at, own)
        self.pages.drop([shared], self.index.holds)
        return [(shared * self.per_page + i, own * self.per_page + i) for i in range(self.per_page)]

    def replace(self, row: int, at: int, page: int) -> None:
        """Another page in the place of one."""
        self.held[row][at] = page
        self._host[row, at] = page

    def slide(self, row: int, tokens: int) -> None:
        """Give back pages that no later row can see, with `tokens` computed."""
        if self.geometry.window is None or row not in self.held:
            return
        behind = (tokens // self.geometry.stride - self.geometry.window) // self.per_page
        gone = [(at, page) for at, page in enumerate(self.held[row][: max(behind, 0)]) if page]
        for at, _ in gone:
            self.replace(row, at, 0)
        self.pages.drop([page for _, page in gone], self.index.holds)

    def give(self, row: int) -> None:
        """Drop every page of the row."""
        self.pages.drop([page for page in self.held.pop(row, []) if page], self.index.holds)
        self._host[row] = 0

    def publish_table(self) -> None:
        """Copy the table to the device, before the step that reads it."""
        if self._table is not self._host:
            self._table.copy_(self._host)

    def table(self) -> Tensor:
        """[request rows, pages] int64, lent."""
        return self._table

    def place(self, rows: Tensor, entry: Tensor) -> Tensor:
        at = (entry // self.per_page).clamp(max=self._table.shape[1] - 1)
        page = self._table[rows, at]
        return torch.where(page > 0, page * self.per_page + entry % self.per_page, 0)

    def stage(self, rows: Tensor, row: Tensor) -> Tensor:
        return self._stage_base + rows * self.geometry.stage + row

    def at(self, row: int, entry: int) -> int:
        return self.held[row][entry // self.per_page] * self.per_page + entry % self.per_page

    def stage_at(self, row: int, window_row: int) -> int:
        return self._stage_base + row * self.geometry.stage + window_row

    def copies(self, source: int, target: int) -> list[tuple[int, int]]:
        return []  # a fork shares pages until somebody writes
