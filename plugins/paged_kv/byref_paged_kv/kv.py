"""The KV role in pages. Knows requests, pages and prefixes; attention finds entries through pools alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from torch import Tensor

from byref.contract.errors import ConfigError, RequestError
from byref.contract.requests import Request
from byref.contract.roles import Sizing
from byref.contract.state import Key
from byref.contract.step import Grant
from byref.kv import Geometry, SlotKV, Space
from byref_paged_kv import Options
from byref_paged_kv.prefix import Digest, chain, root
from byref_paged_kv.space import PagedSpace, StateSpace


@dataclass(slots=True)
class Holding:
    """What one running request has here."""

    row: int
    start: Digest
    published: int = 0
    """Full pages of the first space that are published, or were found published."""
    digests: list[Digest] = field(default_factory=list)
    """Of its pages, as far as they were needed."""
    granted: bool = False
    """Whether it computes already."""


class PagedKV(SlotKV):
    """Pages of fixed size. Equal prefixes share pages; what is published is computed and accepted, never a draft."""

    key: ClassVar[Key[PagedKV]]

    def __init__(self, sizing: Sizing, options: Options) -> None:
        self._options = options
        self._paged: list[PagedSpace] = []
        self._holdings: dict[str, Holding] = {}
        self._pending: dict[Digest, str] = {}
        """Pages being computed, by what they will stand for: followers wait for them."""
        self.hit_tokens = self.asked_tokens = 0
        super().__init__(sizing, self._make_space)
        stateful = any(spec.per == "request" for spec in sizing.pools)
        self._shares = options.prefix_cache and not stateful and bool(self._paged)

    def _make_space(self, geometry: Geometry) -> Space:
        if geometry.per_request:
            return StateSpace(geometry, self._sizing)
        tokens = max(self._options.page_size // geometry.stride, 1) * geometry.stride
        pages = self._options.num_pages * self._options.page_size or self._sizing.kv_tokens
        count = -(-pages // tokens)
        if count < 1:
            raise ConfigError("the KV cache has no page", where="[plugins.paged_kv] num_pages", hint="give it room")
        self._paged.append(PagedSpace(geometry, self._sizing, tokens, count))
        return self._paged[-1]

    def buffers(self) -> Mapping[str, Tensor]:
        tables = {f"space{i}/table": space.table() for i, space in enumerate(self._paged)}
        return {**super().buffers(), **tables}

    def publish_tables(self) -> None:
        """Host, from `prepare_step`: the device sees the pages that the plan granted."""
        for space in self._paged:
            space.publish_table()

    def refusal(self, request: Request) -> str | None:
        need = min(request.limit, self._sizing.max_context) + self._sizing.max_drafts
        for space in self._paged:
            if space.geometry.window is None and -(-need // space.page_tokens) > space.pages.count:
                room = space.pages.count * space.page_tokens
                return f"it needs room for {need} tokens and the KV cache holds {room}"
        return None

    def match(self, request: Request) -> int:
        holding = Holding(request.row, root(request.cache_key))
        self._holdings[request.id] = holding
        if not self._shares:
            return 0
        first = self._paged[0]
        usable = (len(request.tokens) - 1) // first.page_tokens
        holding.digests = list(chain(holding.start, request.tokens, first.page_tokens))
        found = self._longest(request, holding, usable)
        holding.published = found
        return found * first.page_tokens

    def _longest(self, request: Request, holding: Holding, usable: int) -> int:
        """Take the longest prefix that every space has, and return its number of pages.

        A window space has to have only the pages that the window before the prefix's end reaches into.
        """
        found = [self._found(space, request, holding, usable) for space in self._paged]
        n = next(n for n in range(usable, -1, -1) if all(map(partial(_serves, n), self._paged, found)))
        for space, pages in zip(self._paged, found, strict=True):
            kept = [page if at >= n - _reach(space) else 0 for at, page in enumerate(pages[:n])]
            for page in filter(None, kept):
                space.pages.hold(page)
            space.extend(request.row, kept)
        return n

    def _found(self, space: PagedSpace, request: Request, holding: Holding, usable: int) -> list[int]:
        """The published page of each digest, 0 where there is none."""
        size = space.page_tokens
        return [
            space.index.find(digest, request.tokens[i * size : (i + 1) * size]) or 0
            for i, digest in enumerate(holding.digests[:usable])
        ]

    def reserve(self, request: Request, n: int) -> Grant | None:
        holding = self._holdings[request.id]
        self._publish(request, holding)
        if not holding.granted and self._must_wait(request, holding):
            return None
        upto = min(request.computed + n, self._sizing.max_context + self._sizing.max_drafts)
        lacking = [(space, space.missing(request.row, upto)) for space in self._paged]
        if any(count > space.pages.available for space, count in lacking):
            return None
        for space, count in lacking:
            taken = space.pages.take(count)
            space.extend(request.row, taken or [])
        if not holding.granted:
            holding.granted = True
            self.asked_tokens += len(request.tokens)
            self.hit_tokens += request.computed
        for digest in holding.digests[holding.published :]:
            self._pending.setdefault(digest, request.id)
        return Grant(request.id, upto)

    def _must_wait(self, request: Request, holding: Holding) -> bool:
        """Whether somebody is computing the page that this request, which has computed nothing yet, needs next."""
        rest = holding.digests[holding.published :] if self._shares else []
        return bool(rest) and self._pending.get(rest[0], request.id) != request.id

    def commit(self, request: Request, path: Sequence[int]) -> None:
        super().commit(request, path)
        for space in self._paged:
            space.slide(request.row, request.computed + len(path))

    def fork(self, parent: Request, child: Request) -> None:
        holding = self._holdings[parent.id]
        needed = [self._own_pages(space, parent) for space in self._paged]
        if any(len(own) > space.pages.available for space, own in zip(self._paged, needed, strict=True)):
            raise RequestError(f"there is no room to fork request {parent.id}", hint="ask for fewer choices")
        self._holdings[child.id] = Holding(child.row, holding.start, holding.published, list(holding.digests))
        for space, own in zip(self._paged, needed, strict=True):
            pages = list(space.held.get(parent.row, ()))
            fresh = iter(space.pages.take(len(own)) or [])
            for at, page in enumerate(pages):
                if at in own:
                    pages[at] = next(fresh)
                elif page:
                    space.pages.hold(page)
            space.extend(child.row, pages)
        for pool in self._pools.values():
            pool.move(pool.placement.copies(parent.row, child.row))

    def _own_pages(self, space: PagedSpace, parent: Request) -> list[int]:
        """Places of pages that the two may not share: those that either will write to."""
        full = parent.computed // space.page_tokens
        return [at for at, page in enumerate(space.held.get(parent.row, ())) if at >= full and page]

    def release(self, request: Request) -> None:
        holding = self._holdings.pop(request.id, None)
        if holding is None:
            return
        self._publish(request, holding)
        self._pending = {digest: id for digest, id in self._pending.items() if id != request.id}
        for space in self._paged:
            space.give(holding.row)

    def _publish(self, request: Request, holding: Holding) -> None:
        """Full pages whose rows every role has computed, and whose tokens are accepted, become findable."""
        if not self._shares:
            return
        size = self._paged[0].page_tokens
        full = min((request.lengths.get(role.name, 0) for role in self._sizing.roles), default=0) // size
        if full > len(holding.digests):
            before = holding.digests[-1] if holding.digests else holding.start
            more = request.tokens[len(holding.digests) * size : full * size]
            holding.digests += chain(before, more, size)
        for i in range(holding.published, full):
            tokens, digest = request.tokens[i * size : (i + 1) * size], holding.digests[i]
            for space in self._paged:
                page = space.held[request.row][i]
                if page:
                    space.index.put(digest, tokens, page)
            self._pending.pop(digest, None)
        holding.published = max(holding.published, full)

    def reset(self) -> None:
        """Forget every published page; running requests keep what they have. Also called after warm-up."""
        for space in self._paged:
            for page in space.index.clear():
                space.pages.forget(page)

    def usage(self) -> Mapping[str, int]:
        first = self._paged[0] if self._paged else None
        return {
            "used_tokens": first.pages.used * first.page_tokens if first else 0,
            "capacity_tokens": first.pages.count * first.page_tokens if first else 0,
        }

    def figures(self) -> Mapping[str, int]:
        """Pages of the first space, and what the prefix cache did since the start."""
        pages = self._paged[0].pages
        return {
            "free_pages": pages.available - pages.cached,
            "used_pages": pages.used,
            "cached_pages": pages.cached,
            "evictions": pages.evictions,
            "hit_tokens": self.hit_tokens,
            "asked_tokens": self.asked_tokens,
        }


def _reach(space: PagedSpace) -> int:
    """Pages before a page's end that the window reaches into; more than there are without a window."""
    window = space.geometry.window
    return -(-window // space.per_page) if window is not None else 1 << 62


def _serves(n: int, space: PagedSpace, pages: list[int]) -> bool:
    return all(pages[max(n - _reach(space), 0) : n])


PagedKV.key = Key("paged_kv", PagedKV)
