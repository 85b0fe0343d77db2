"""The KV role in pages. Knows requests and pages; attention finds entries through pools alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from byref.contract.errors import RequestError
from byref.contract.requests import Request
from byref.contract.roles import Sizing
from byref.contract.state import Key
from byref.contract.step import Grant
from byref.kv import Geometry, SlotKV, Space
from byref_paged_kv import Options
from byref_paged_kv.budget import count_pages, page_tokens
from byref_paged_kv.events import Listener
from byref_paged_kv.sharing import Sharing
from byref_paged_kv.space import PagedSpace, StateSpace


@dataclass(slots=True)
class Counts:
    """What happened since the start."""

    hit_tokens: int = 0
    asked_tokens: int = 0
    preemptions: int = 0


class PagedKV(SlotKV):
    """Pages of fixed size, the same number of tokens in every space."""

    key: ClassVar[Key[PagedKV]]

    def __init__(self, sizing: Sizing, options: Options) -> None:
        self._page_tokens = page_tokens(sizing.pools, options.page_size)
        self._count = count_pages(options, sizing)
        self._paged: list[PagedSpace] = []
        self._granted: set[str] = set()
        """Requests that compute already."""
        self._rows: dict[str, int] = {}
        self.counts = Counts()
        super().__init__(sizing, self._make_space)
        # The state after a prefix is there only where a window ended just there, so nobody could start from it.
        stateful = any(spec.per == "request" for spec in sizing.pools)
        roles = [role.name for role in sizing.roles]
        self._sharing = Sharing(self._paged, roles, enabled=options.prefix_cache and not stateful)
        self._ahead = sizing.max_drafts if len(sizing.roles) > 1 else 0
        """Rows that a drafter of its own role computes after those of the target's window."""

    def _make_space(self, geometry: Geometry) -> Space:
        if geometry.per_request:
            return StateSpace(geometry, self._sizing)
        self._paged.append(PagedSpace(geometry, self._sizing, self._page_tokens, self._count))
        return self._paged[-1]

    def buffers(self) -> Mapping[str, Tensor]:
        tables = {f"space{i}/table": space.table() for i, space in enumerate(self._paged)}
        return {**super().buffers(), **tables}

    def publish_tables(self) -> None:
        """Host, from `prepare_step`: the device sees the pages that the plan granted."""
        for space in self._paged:
            space.publish_table()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every event of the prefix cache, while it happens."""
        self._sharing.listeners.append(listener)

    def refusal(self, request: Request) -> str | None:
        need = self._most(request)
        for space in self._paged:
            if -(-self._at_once(space, need) // self._page_tokens) > space.pages.count:
                room = space.pages.count * self._page_tokens
                return f"it needs room for {need} tokens and the KV cache holds {room}"
        return None

    def match(self, request: Request) -> int:
        self._rows[request.id] = request.row
        return self._sharing.match(request)

    def reserve(self, request: Request, n: int) -> Grant | None:
        self._sharing.publish(request)
        first = request.id not in self._granted
        if first and self._sharing.must_wait(request):
            return None
        upto = min(request.computed + n, self._most(request))
        lacking = [(space, space.missing(request.row, self._reach(space, request, upto))) for space in self._paged]
        if any(count > space.pages.available for space, count in lacking):
            return None
        for space, count in lacking:
            space.grow(request.row, count)
        if first:
            self._start(request)
        return Grant(request.id, upto)

    def _start(self, request: Request) -> None:
        self._granted.add(request.id)
        self.counts.asked_tokens += len(request.tokens)
        self.counts.hit_tokens += request.computed
        self._sharing.claim(request)

    def _most(self, request: Request) -> int:
        """Entries that it can ever have, drafts in flight included."""
        return min(request.limit, self._sizing.max_context) + self._sizing.max_drafts

    def _at_once(self, space: PagedSpace, entries: int) -> int:
        """Tokens whose entries are kept at once: of a window space those of the window and of two forwards, unless
        another role that stays behind needs more."""
        window = space.geometry.window
        if window is None or len(self._sizing.roles) > 1:
            return entries
        return min(entries, window * space.geometry.stride + 2 * self._sizing.max_rows + 2 * self._page_tokens)

    def _reach(self, space: PagedSpace, request: Request, upto: int) -> int:
        """How far `space` needs pages now: with the drafter's rows, and of a window space for one forward only."""
        if space.geometry.window is not None:
            upto = min(upto, request.computed + self._sizing.max_rows)
        return min(upto + self._ahead, self._most(request))

    def commit(self, request: Request, path: Sequence[int]) -> None:
        super().commit(request, path)
        start = request.computed
        # A drafter computes the same rows after the target: what they see must still be there. One that has computed
        # nothing by the second window is not run for this request.
        behind = [n for n in request.lengths.values() if n or not start]
        for space in self._paged:
            space.slide(request.row, min(behind) if len(self._sizing.roles) > 1 else start + len(path))

    def fork(self, parent: Request, child: Request) -> None:
        full = parent.computed // self._page_tokens
        own = [{at for at, page in enumerate(space.held[parent.row]) if at >= full and page} for space in self._paged]
        if any(len(places) > space.pages.available for space, places in zip(self._paged, own, strict=True)):
            raise RequestError(f"there is no room to fork request {parent.id}", hint="ask for fewer choices")
        for space, places in zip(self._paged, own, strict=True):
            space.fork(parent.row, child.row, places)
        self._rows[child.id] = child.row
        self._granted.add(child.id)
        self._sharing.fork(parent, child)
        for pool in self._pools.values():
            pool.move(pool.placement.copies(parent.row, child.row))

    def release(self, request: Request) -> None:
        row = self._rows.pop(request.id, None)
        if row is None:
            return
        self._sharing.release(request)
        self._granted.discard(request.id)
        for space in self._paged:
            space.give(row)

    def preempted(self, request: Request) -> None:
        """Count a request that loses what it computed."""
        self.counts.preemptions += request.id in self._granted

    def reset(self) -> None:
        """Forget every published page; running requests keep what they have. Also called after warm-up."""
        self._sharing.reset()

    def usage(self) -> Mapping[str, int]:
        pages = self._paged[0].pages if self._paged else None
        return {
            "used_tokens": pages.used * self._page_tokens if pages else 0,
            "capacity_tokens": pages.count * self._page_tokens if pages else 0,
        }

    def figures(self) -> Mapping[str, float]:
        """Pages of all spaces, and what happened since the start."""
        pages = [space.pages for space in self._paged]
        return {
            "free_pages": sum(p.available - p.cached for p in pages),
            "used_pages": sum(p.used for p in pages),
            "cached_pages": sum(p.cached for p in pages),
            "evictions": sum(p.evictions for p in pages),
            "hit_rate": self.counts.hit_tokens / max(self.counts.asked_tokens, 1),
            "hit_tokens": self.counts.hit_tokens,
            "asked_tokens": self.counts.asked_tokens,
            "preemptions": self.counts.preemptions,
        }


PagedKV.key = Key("paged_kv", PagedKV)
