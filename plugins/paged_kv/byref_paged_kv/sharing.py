"""The prefix cache: which pages and checkpoints a request finds, publishes, or waits for. Knows tokens and pages of
every space; moves no entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from byref.contract.requests import Request
from byref_paged_kv.events import CacheReset, Digest, Listener, PageRemoved, PageStored
from byref_paged_kv.prefix import CacheKey, Content, chain, chained, root, typed
from byref_paged_kv.space import PagedSpace
from byref_paged_kv.states import StateSpace


@dataclass(slots=True)
class Thread:
    """A running request as the prefix cache sees it."""

    key: CacheKey
    start: Digest
    digests: list[Digest] = field(default_factory=list)
    """Of its pages, as far as they were needed."""
    published: int = 0
    """Leading pages that are published, or were found published."""
    stale: bool = False
    """The cache was reset since: what it has computed is not to be found any more."""
    follows: bool = False
    """Whether it would use pages that others compute."""


class Sharing:
    """Equal prefixes share pages. Only computed and accepted tokens are published, never a draft.

    Args:
        spaces: those of pages.
        states: those of per-request pools, whose states are found where a checkpoint was kept.
        roles: names of every role.
        every: pages between two checkpoints; 0 keeps those at the end of prompts alone.
        enabled: whether anything is shared.
    """

    def __init__(
        self,
        spaces: Sequence[PagedSpace],
        states: Sequence[StateSpace],
        roles: Sequence[str],
        every: int,
        *,
        enabled: bool,
    ) -> None:
        self._spaces, self._states, self._roles = spaces, states, roles
        self._all: tuple[PagedSpace | StateSpace, ...] = (*spaces, *states)
        self._enabled = enabled and bool(spaces)
        self._size = spaces[0].page_tokens if spaces else 1
        self._interval = every * self._size
        self._threads: dict[str, Thread] = {}
        self._pending: dict[Digest, str] = {}
        """Pages being computed, by what they will stand for: followers wait for them."""
        self.listeners: list[Listener] = []
        for space in self._all:
            space.on_evict = partial(self._evicted, space)

    @property
    def enabled(self) -> bool:
        """Whether pages are shared at all."""
        return self._enabled

    def match(self, request: Request) -> int:
        """Take the longest prefix that every space has, of states a checkpoint at its end; its number of tokens. The
        last token is always computed again, and with it its page; a request that scores its prompt computes all."""
        key = typed(request.cache_key)
        thread = self._threads[request.id] = Thread(key, root(key))
        if not self._enabled or request.params.prompt_logprobs is not None:
            return 0
        thread.follows = True
        thread.digests = list(chained(thread.start, tuple(request.tokens), self._size))
        usable = (len(request.tokens) - 1) // self._size
        contents = [self._content(thread, request, i) for i in range(usable)]
        found = [[space.index.find(content) for content in contents] for space in self._all]
        n = next(n for n in range(usable, -1, -1) if all(map(partial(_serves, n), self._all, found)))
        for space, pages in zip(self._all, found, strict=True):
            space.share(request.row, [page if at >= n - space.reach else 0 for at, page in enumerate(pages[:n])])
        thread.published = n
        return n * self._size

    def must_wait(self, request: Request) -> bool:
        """Whether somebody is computing the page that this request, which has computed nothing yet, needs next; where
        there are states, any page at whose end there will be a checkpoint."""
        thread = self._threads[request.id]
        first, usable = thread.published, (len(request.tokens) - 1) // self._size
        ahead = thread.digests[first : usable if self._states else first + 1] if thread.follows else []
        return any(self._pending.get(digest, request.id) != request.id for digest in ahead)

    def claim(self, request: Request) -> None:
        """The request starts: what it will compute is announced."""
        thread = self._threads[request.id]
        if not thread.follows:
            return
        first, end = thread.published, len(thread.digests)
        marks = [m // self._size - 1 for m in self.marks(request, first * self._size, end * self._size)]
        for i in marks if self._states else range(first, end):
            self._pending.setdefault(thread.digests[i], request.id)

    def marks(self, request: Request, start: int, end: int) -> list[int]:
        """Ends of pages after token `start` and up to `end` where a checkpoint is to be kept: every so many pages, and
        after the last full page before the prompt's last token."""
        if not self._states or not self._enabled or self._threads[request.id].stale:
            return []
        regular = range(start // self._interval * self._interval, end + 1, self._interval) if self._interval else ()
        last = (len(request.prompt) - 1) // self._size * self._size
        return [mark for mark in sorted({*regular, last}) if start < mark <= end]

    def before(self, request: Request, tokens: int) -> Content:
        """What the page that ends after so many tokens holds; its tokens are known and accepted."""
        thread = self._threads[request.id]
        self._extend(thread, request, tokens // self._size)
        return self._content(thread, request, tokens // self._size - 1)

    def publish(self, request: Request) -> None:
        """Full pages whose rows every role has computed, and whose tokens are accepted, become findable."""
        thread = self._threads[request.id]
        if not self._enabled or thread.stale:
            return
        full = min(request.lengths.get(role, 0) for role in self._roles) // self._size
        self._extend(thread, request, full)
        for i in range(thread.published, full):
            self._put(thread, request, i)
        thread.published = max(thread.published, full)
        # A role that is not run for this request leaves pages that nobody finds: nobody is to wait for them.
        for digest in thread.digests[thread.published : request.computed // self._size]:
            self._drop_claim(digest, request.id)

    def _extend(self, thread: Thread, request: Request, pages: int) -> None:
        if pages > len(thread.digests):
            before = thread.digests[-1] if thread.digests else thread.start
            more = request.tokens[len(thread.digests) * self._size : pages * self._size]
            thread.digests += chain(before, more, self._size)

    def _put(self, thread: Thread, request: Request, i: int) -> None:
        content = self._content(thread, request, i)
        new = False
        for space in self._spaces:
            page = space.held[request.row][i]
            new |= bool(page) and space.index.put(content, page)
        if new:
            before = thread.digests[i - 1] if i else thread.start
            self._tell(PageStored(content.digest, before, content.tokens))
        self._drop_claim(content.digest, request.id)

    def _drop_claim(self, digest: Digest, id: str) -> None:
        if self._pending.get(digest) == id:
            del self._pending[digest]

    def fork(self, parent: Request, child: Request) -> None:
        """The child has what the parent has."""
        thread = self._threads[parent.id]
        self._threads[child.id] = replace(thread, digests=list(thread.digests), follows=False)

    def release(self, request: Request) -> None:
        """Publish what it leaves, and announce nothing more for it."""
        self.publish(request)
        for digest in self._threads.pop(request.id).digests:
            self._drop_claim(digest, request.id)

    def reset(self) -> None:
        """Forget every published page. Running requests keep theirs, and nobody finds them."""
        for thread in self._threads.values():
            thread.stale, thread.follows = True, False
        self._pending.clear()
        for space in self._all:
            for page in space.index.clear():
                space.pages.forget(page)
        self._tell(CacheReset())

    def _content(self, thread: Thread, request: Request, i: int) -> Content:
        tokens = tuple(request.tokens[i * self._size : (i + 1) * self._size])
        return Content(thread.digests[i], thread.key, tokens)

    def is_stale(self, request: Request) -> bool:
        """Whether the cache was reset since the request started."""
        return self._threads[request.id].stale

    def _evicted(self, space: PagedSpace | StateSpace, page: int) -> None:
        digest = space.index.forget(page)
        if space is self._spaces[0]:
            self._tell(PageRemoved(digest))

    def _tell(self, event: CacheReset | PageRemoved | PageStored) -> None:
        for listener in self.listeners:
            listener(event)


def _serves(n: int, space: PagedSpace | StateSpace, pages: Sequence[int]) -> bool:
    """Whether a prefix of n pages is there; of a window space, as far as the window before its end reaches."""
    return all(pages[max(n - space.reach, 0) : n])
