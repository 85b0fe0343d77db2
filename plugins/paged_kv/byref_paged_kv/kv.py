"""The KV role in pages. Knows requests and pages; attention finds entries through pools alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from byref.contract.requests import Request
from byref.contract.roles import TARGET, Sizing
from byref.contract.state import Key
from byref.contract.step import Grant
from byref.kv import Geometry, SlotKV, SlotPool, Space
from byref_paged_kv import Options
from byref_paged_kv.budget import count_pages, page_bytes, page_tokens
from byref_paged_kv.events import Listener
from byref_paged_kv.sharing import Sharing
from byref_paged_kv.space import PagedSpace
from byref_paged_kv.states import StateSpace
from byref_paged_kv.swap import Swap


@dataclass(slots=True)
class Counts:
    """What happened since the start."""

    hit_tokens: int = 0
    asked_tokens: int = 0
    preemptions: int = 0
    swapped: int = 0
    """Times that entries were copied back from host memory instead of computed again."""


class PagedKV(SlotKV):
    """Pages of fixed size, the same number of tokens in every space."""

    key: ClassVar[Key[PagedKV]]

    def __init__(self, sizing: Sizing, options: Options) -> None:
        self._page_tokens = page_tokens(sizing.pools, options.page_size)
        self._count = count_pages(options, sizing)
        self._options = options
        self._paged: list[PagedSpace] = []
        self._states: list[StateSpace] = []
        self._granted: set[str] = set()
        """Requests that compute already."""
        self._rows: dict[str, int] = {}
        self.counts = Counts()
        super().__init__(sizing, self._make_space)
        self._on: dict[Space, list[SlotPool]] = {space: [] for space in (*self._paged, *self._states)}
        for pool in self._pools.values():
            self._on[pool.placement].append(pool)
        # Checkpoints are kept when the target's rows are: a state of another role is not there yet.
        elsewhere = any(spec.per == "request" and spec.role != TARGET for spec in sizing.pools)
        unfound = elsewhere or any(not space.pages.count for space in self._states)
        roles = [role.name for role in sizing.roles]
        self._sharing = Sharing(
            self._paged, self._states, roles, options.checkpoint_pages, enabled=options.prefix_cache and not unfound
        )
        self._swap = Swap(self._on, self._host_pages(), sizing.max_requests) if options.swap_memory else None
        self._restored: set[str] = set()
        """Requests whose entries came back from host memory, until they start."""
        self._leaving = ""
        """The request that is being preempted."""
        self._ahead = sizing.max_drafts if len(sizing.roles) > 1 else 0
        """Rows that a drafter of its own role computes after those of the target's window."""

    def _make_space(self, geometry: Geometry) -> Space:
        if geometry.per_request:
            kept = self._options.checkpoints if self._options.prefix_cache else 0
            self._states.append(StateSpace(geometry, self._sizing, kept))
            return self._states[-1]
        self._paged.append(PagedSpace(geometry, self._sizing, self._page_tokens, self._count))
        return self._paged[-1]

    def _host_pages(self) -> int:
        """Pages of every space that the host's memory for preempted requests holds."""
        return int(self._options.swap_memory or 0) // max(page_bytes(self._sizing, self._page_tokens), 1)

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
        found = self._sharing.match(request)
        for space in self._states:
            self._copy(space, space.restore(request.row, found))
        return self._swap_in(request, found)

    def _swap_in(self, request: Request, found: int) -> int:
        """Where host memory has more of the request than was found, and there is room for it all, take that."""
        n = self._swap.length(request) if self._swap else 0
        if self._swap is None or n <= found:
            return found
        ends = {space: self._reach(space, request, len(request.tokens), n) for space in self._paged}
        if not self._has_room([(space, self._swap.missing(request, space, n, ends[space])) for space in self._paged]):
            return found
        self._swap.restore(request)
        self._restored.add(request.id)
        return n

    def _copy(self, space: Space, pairs: Sequence[tuple[int, int]]) -> None:
        for pool in self._on[space]:
            pool.move(pairs)

    def reserve(self, request: Request, n: int) -> Grant | None:
        self._sharing.publish(request)
        if self.follows(request):
            return None
        upto = min(request.computed + n, self._most(request))
        lacking = self._lacking(request, upto)
        parting = [space for space in self._paged if space.is_shared(request.row, request.computed)]
        if not self._has_room([(space, count + (space in parting)) for space, count in lacking]):
            return None
        for space in parting:
            self._copy(space, space.part(request.row, request.computed))
        for space, count in lacking:
            space.grow(request.row, count)
        if request.id not in self._granted:
            self._start(request)
        return Grant(request.id, upto, self._pause(request, upto))

    def follows(self, request: Request) -> bool:
        return request.id not in self._granted and self._sharing.must_wait(request)

    def _lacking(self, request: Request, upto: int) -> list[tuple[PagedSpace, int]]:
        """Pages that each space lacks for the request's entries up to there."""
        ends = [self._reach(space, request, upto, request.computed) for space in self._paged]
        return [(space, space.missing(request.row, end)) for space, end in zip(self._paged, ends, strict=True)]

    def _has_room(self, lacking: Sequence[tuple[PagedSpace, int]]) -> bool:
        return all(count <= space.pages.available for space, count in lacking)

    def _pause(self, request: Request, upto: int) -> int:
        """The first place at which a checkpoint is wanted and which a window up to `upto` would run over: of its states
        only the newest versions are kept."""
        newest = min((space.geometry.versions for space in self._states), default=0)
        return next(iter(self._sharing.marks(request, request.computed, upto - newest)), 0)

    def _start(self, request: Request) -> None:
        self._granted.add(request.id)
        if self._swap and request.id in self._restored:
            self.counts.swapped += 1
            self._restored.discard(request.id)
        else:
            self.counts.asked_tokens += len(request.tokens)
            self.counts.hit_tokens += request.computed
        if self._swap:
            self._swap.drop(request.id)
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

    def _reach(self, space: PagedSpace, request: Request, upto: int, computed: int) -> int:
        """How far `space` needs pages now: with the drafter's rows, and of a window space for one forward only."""
        if space.geometry.window is not None:
            upto = min(upto, computed + self._sizing.max_rows)
        return min(upto + self._ahead, self._most(request))

    def commit(self, request: Request, path: Sequence[int]) -> None:
        super().commit(request, path)
        start = request.computed
        # A drafter computes the same rows after the target, at once or when it begins to draft: what they see must
        # still be there.
        behind = [request.lengths.get(role.name, 0) for role in self._sizing.roles]
        for space in self._paged:
            space.slide(request.row, min(behind) if len(behind) > 1 else start + len(path))
        self._keep_states(request, start, start + len(path))

    def _keep_states(self, request: Request, start: int, end: int) -> None:
        """Checkpoints of those states after rows start to end that are still there."""
        for mark in self._sharing.marks(request, start, end) if self._states else ():
            for space in self._states:
                if mark > end - space.geometry.versions:
                    content = self._sharing.before(request, mark)
                    self._copy(space, space.keep(request.row, mark, content))

    def fork(self, parent: Request, child: Request) -> None:
        for space in self._paged:
            space.fork(parent.row, child.row, parent.computed)
        self._rows[child.id] = child.row
        self._granted.add(child.id)
        self._sharing.fork(parent, child)
        for states in self._states:
            self._copy(states, states.copies(parent.row, child.row))

    def release(self, request: Request) -> None:
        row, preempted = self._rows.pop(request.id, None), self._leaving == request.id
        self._leaving = ""
        if self._swap and not preempted:
            self._swap.drop(request.id)
        if row is None:
            return
        if preempted:
            self._swap_out(request)
        self._sharing.release(request)
        self._granted.discard(request.id)
        self._restored.discard(request.id)
        for space in self._paged:
            space.give(row)

    def _swap_out(self, request: Request) -> None:
        """Copy what every role has of it to host memory. A state is there after the target's last row only."""
        tokens = min(request.lengths.get(role.name, 0) for role in self._sizing.roles)
        whole = not self._states or tokens == request.computed
        if self._swap and request.id in self._granted and whole and not self._sharing.is_stale(request):
            self._swap.save(request, tokens)

    def preempted(self, request: Request) -> None:
        """Told before `release` of a request that waits for memory: it loses what it has computed."""
        self._leaving = request.id
        self.counts.preemptions += request.id in self._granted

    def reset(self) -> None:
        """Forget every published page; running requests keep what they have. Also called after warm-up."""
        self._sharing.reset()
        if self._swap:
            self._swap.clear()

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
            "checkpoints": sum(space.pages.cached for space in self._states),
            "swapped_in": self.counts.swapped,
            "swapped_pages": self._swap.used if self._swap else 0,
        }


PagedKV.key = Key("paged_kv", PagedKV)
