"""Where states of per-request pools lie, and the checkpoints kept of them. Knows request rows and slots; no token."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from byref.contract.roles import Sizing
from byref.kv import Geometry, Space
from byref_paged_kv.pages import Pages
from byref_paged_kv.prefix import Content, Index


class StateSpace(Space):
    """The versions of per-request pools, a fixed place for each request row; behind them the checkpoints.

    A checkpoint is a copy of the state that stood where a page ends. It is found like the page, and copied into the
    versions of a request that begins alike, so nobody holds one for longer than the copy takes.
    """

    reach = 1
    """A request that starts after a page needs the checkpoint at that page's end and none before."""

    def __init__(self, geometry: Geometry, sizing: Sizing, checkpoints: int) -> None:
        self.geometry = geometry
        self.index = Index()
        self.on_evict: Callable[[int], object] = self.index.forget
        """Told of a checkpoint that makes room for another."""
        self.pages = Pages(checkpoints, self._evicted)
        self._checkpoints = 1 + (sizing.max_requests + 1) * geometry.versions
        self.slots = self._checkpoints + checkpoints
        self._found: dict[int, int] = {}

    def _evicted(self, page: int) -> None:
        self.on_evict(page)  # looked up now: it is set after this object is made

    def place(self, rows: Tensor, entry: Tensor) -> Tensor:
        return 1 + rows * self.geometry.versions + entry

    def stage(self, rows: Tensor, row: Tensor) -> Tensor:
        raise NotImplementedError("per-request pools have no stride")

    def at(self, row: int, entry: int) -> int:
        return 1 + row * self.geometry.versions + entry

    def stage_at(self, row: int, window_row: int) -> int:
        raise NotImplementedError("per-request pools have no stride")

    def copies(self, source: int, target: int) -> list[tuple[int, int]]:
        return [(self.at(source, i), self.at(target, i)) for i in range(self.geometry.versions)]

    def state_at(self, row: int, tokens: int) -> int:
        """The slot of the state after so many tokens, one of the newest."""
        return self.at(row, (tokens - 1) % self.geometry.versions)

    def share(self, row: int, pages: list[int]) -> None:
        """Note the last of `pages` for `restore`; it was used just now."""
        if pages:
            self._found[row] = pages[-1]
            self.pages.hold(pages[-1])
            self.pages.drop(pages[-1:], self.index.holds)

    def restore(self, row: int, tokens: int) -> list[tuple[int, int]]:
        """Slots to copy, (from, to), so that the row has the checkpoint it has found after so many tokens."""
        page = self._found.pop(row, 0)
        return [(self._slot(page), self.state_at(row, tokens))] if page else []

    def keep(self, row: int, tokens: int, content: Content) -> list[tuple[int, int]]:
        """Slots to copy, (from, to), so that there is a checkpoint of the row's state after so many tokens; none
        where there is one already."""
        if self.index.find(content):
            return []
        (page,) = self.pages.take(1) or [0]
        kept = bool(page) and self.index.put(content, page)
        self.pages.drop([page] if page else [], self.index.holds)
        return [(self.state_at(row, tokens), self._slot(page))] if kept else []

    def _slot(self, page: int) -> int:
        return self._checkpoints + page - 1
