"""Host memory for what preempted requests had computed. Knows slots of every pool; not when anybody is preempted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from byref.contract.requests import Request
from byref.kv import SlotPool, Space
from byref_paged_kv.pages import Pages
from byref_paged_kv.prefix import CacheKey, typed
from byref_paged_kv.space import PagedSpace
from byref_paged_kv.states import StateSpace

OnSpace = Mapping[Space, Sequence[SlotPool]]
"""The pools of each space."""


class Saved(NamedTuple):
    """What host memory has of one request."""

    key: CacheKey
    tokens: tuple[int, ...]
    """Those whose entries are there."""
    pages: tuple[dict[int, int], ...]
    """Of every space: host page by place in the request. A state is a page of one entry."""


@dataclass(slots=True)
class Store:
    """The host's copy of the pools of one space."""

    space: PagedSpace | StateSpace
    pools: Sequence[SlotPool]
    pages: Pages
    data: list[torch.Tensor]

    @classmethod
    def of(cls, space: PagedSpace | StateSpace, pools: Sequence[SlotPool], count: int) -> Store:
        """Room for `count` pages, allocated now and touched when it is used."""
        entries = (count + 1) * (space.per_page if isinstance(space, PagedSpace) else 1)
        pinned = any(pool.data.is_cuda for pool in pools)
        data = [torch.empty(entries, p.data.shape[1], dtype=p.data.dtype, pin_memory=pinned) for p in pools]
        return cls(space, pools, Pages(count, lambda page: None), data)

    def sources(self, row: int, tokens: int) -> dict[int, int]:
        """By place what the request row has of its first `tokens` tokens: pages, or the slot of its state."""
        if isinstance(self.space, StateSpace):
            return {0: self.space.state_at(row, tokens)}
        held = self.space.held.get(row, [])[: -(-tokens // self.space.page_tokens)]
        return {at: page for at, page in enumerate(held) if page}

    def copy(self, pairs: Sequence[tuple[int, int]], *, back: bool = False) -> None:
        """Pages (here, host): to the host, or `back` from it."""
        if not pairs:
            return
        size = self.space.per_page if isinstance(self.space, PagedSpace) else 1
        here, there = ([page * size + i for pair in pairs for page in (pair[k],) for i in range(size)] for k in (0, 1))
        for pool, data in zip(self.pools, self.data, strict=True):
            if back:
                pool.data[here] = data[there].to(pool.data.device)
            else:
                data[there] = pool.data[here].to(data.device)


class Swap:
    """Keeps the entries of preempted requests until they start again. What finds no room is computed again.

    Args:
        spaces: with their pools; those of pages first.
        count: pages of host memory for each of them.
        requests: states of host memory.
    """

    def __init__(self, spaces: OnSpace, count: int, requests: int) -> None:
        self._stores = [
            Store.of(space, pools, count if isinstance(space, PagedSpace) else requests)
            for space, pools in spaces.items()
            if isinstance(space, PagedSpace | StateSpace)
        ]
        self._saved: dict[str, Saved] = {}

    @property
    def used(self) -> int:
        """Pages of host memory in use."""
        return sum(store.pages.used for store in self._stores)

    def save(self, request: Request, tokens: int) -> bool:
        """Copy the entries of the request's first `tokens` tokens; False where there is no room."""
        self.drop(request.id)
        sources = [store.sources(request.row, tokens) for store in self._stores]
        if not tokens or any(len(s) > store.pages.available for s, store in zip(sources, self._stores, strict=True)):
            return False
        pages = []
        for store, source in zip(self._stores, sources, strict=True):
            taken = store.pages.take(len(source)) or []
            store.copy(list(zip(source.values(), taken, strict=True)))
            pages.append(dict(zip(source, taken, strict=True)))
        self._saved[request.id] = Saved(typed(request.cache_key), tuple(request.tokens[:tokens]), tuple(pages))
        return True

    def length(self, request: Request) -> int:
        """Leading tokens of the request whose entries are here."""
        saved = self._saved.get(request.id)
        if saved is None or saved.key != typed(request.cache_key):
            return 0
        n = len(saved.tokens)
        return n if n < len(request.tokens) and tuple(request.tokens[:n]) == saved.tokens else 0

    def missing(self, request: Request, space: PagedSpace, tokens: int, upto: int) -> int:
        """Pages of `space` that the request lacks for the `tokens` tokens kept of it and for all up to `upto`."""
        there = len(space.held.get(request.row, ()))
        kept = next(p for s, p in zip(self._stores, self._saved[request.id].pages, strict=True) if s.space is space)
        rest = -(-upto // space.page_tokens) - -(-tokens // space.page_tokens)
        return sum(at >= there for at in kept) + max(rest, 0)

    def restore(self, request: Request) -> None:
        """Give the request, which may have shared pages already, pages of its own for the rest, and copy them back.
        There must be room."""
        saved = self._saved[request.id]
        for store, pages in zip(self._stores, saved.pages, strict=True):
            space = store.space
            if isinstance(space, StateSpace):
                store.copy([(space.state_at(request.row, len(saved.tokens)), pages[0])], back=True)
                continue
            there = len(space.held.get(request.row, ()))
            places = range(there, -(-len(saved.tokens) // space.page_tokens))
            fresh = iter(space.pages.take(sum(at in pages for at in places)) or [])
            own = {at: next(fresh) if at in pages else 0 for at in places}
            space.extend(request.row, list(own.values()))
            store.copy([(page, pages[at]) for at, page in own.items() if page], back=True)

    def drop(self, id: str) -> None:
        """Forget what is kept of a request."""
        saved = self._saved.pop(id, None)
        for store, pages in zip(self._stores, saved.pages if saved else (), strict=saved is not None):
            store.pages.drop(list(pages.values()), lambda page: False)

    def clear(self) -> None:
        """Forget everything."""
        for id in list(self._saved):
            self.drop(id)
