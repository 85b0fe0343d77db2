"""Who owns which page, after any program: adds, chunks, drafts, forks, aborts, preemptions, swaps and resets on a tiny
pool.

Host side only. What a row writes is a number that stands for its cache key and all tokens up to it, so an entry that
was lost, shared too early or overwritten by somebody else shows.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
import torch
from hypothesis import Phase, settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from byref.contract import Request, RequestError, SamplingParams
from byref.contract.roles import DRAFT, TARGET, RoleSizing, Sizing
from byref.contract.specs import PoolSpec
from byref_paged_kv import Options
from byref_paged_kv.budget import page_bytes, page_tokens
from byref_paged_kv.kv import PagedKV
from byref_paged_kv.sharing import Sharing
from byref_paged_kv.space import PagedSpace
from byref_paged_kv.states import StateSpace

PROGRAMS = 2000
TOKENS = 12
DRAFTS = 3
ROWS = 3
pick = strategies.integers(0, 5)
BASES = ([0, 0, 0, 1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 1, 1, 0, 0, 1])
prompts = strategies.builds(lambda base, n: base[:n], strategies.sampled_from(BASES), strategies.integers(1, 9))
"""Few, and most begin alike."""


def sizing(roles: int, states: bool) -> Sizing:
    def spec(name, role=TARGET, **more):
        return PoolSpec(name=name, role=role, width=1, dtype=torch.int64, **more)

    pools = [
        spec("whole"),
        spec("newest", window=3),
        spec("halved", stride=2),
        spec("drafted", DRAFT),
        spec("late", DRAFT, window=3),
    ]
    return Sizing(
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_requests=ROWS,
        max_rows=4,
        max_context=TOKENS,
        max_drafts=DRAFTS,
        kv_tokens=0,
        captured=frozenset(),
        roles=(RoleSizing(TARGET, 0, 1, 0), RoleSizing(DRAFT, 1, 1, 0))[:roles],
        pools=tuple(pools[: 3 if roles == 1 else 5] + [spec("state", per="request", versions=DRAFTS + 1)] * states),
    )


class Programs(RuleBasedStateMachine):
    @initialize(
        page=strategies.sampled_from([1, 2, 4, 6]),
        pages=strategies.integers(3, 16),
        roles=strategies.integers(1, 2),
        states=strategies.booleans(),
        swap=strategies.sampled_from([0, 2, 20]),
    )
    def begin(self, page, pages, roles, states, swap):
        self.sizing = sizing(roles, states)
        host = page_bytes(self.sizing, page_tokens(self.sizing.pools, page)) * swap or None
        kept = {"checkpoints": 5, "checkpoint_pages": 1, "swap_memory": host}
        self.kv = PagedKV(self.sizing, Options(page_size=page, num_pages=pages, **kept))
        self.page = self.kv._page_tokens
        self.data = {id(pool): pool.data.view(-1).numpy() for pool in self.kv._pools.values()}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        """Preempted ones."""
        self.rows = list(range(ROWS, 0, -1))
        self.numbers, self.ids, self.tokens = {}, count(1), count(2)

    def number(self, request, upto, drafts=()):
        """Stands for a key and tokens."""
        content = (tuple(request.cache_key.items()), tuple(request.tokens[:upto]), tuple(drafts))
        return self.numbers.setdefault(content, len(self.numbers) + 1)

    def one(self, which):
        return self.running[which % len(self.running)]

    @precondition(lambda self: len(self.running) < ROWS)
    @rule(tokens=prompts, key=strategies.booleans(), most=strategies.integers(1, 8))
    def add(self, tokens, key, most):
        params = SamplingParams(max_tokens=most)
        request = Request(f"r{next(self.ids)}", tuple(tokens), params, 0, tokens=list(tokens), cache_key={"salt": key})
        self.admit(request)

    def admit(self, request):
        if self.kv.refusal(request):
            return
        request.row, request.lengths = self.rows.pop(), {}
        kept = self.kv._swap.length(request) if self.kv._swap else 0
        found = self.kv.match(request)
        assert found % self.page == 0 or found == kept
        assert found < len(request.tokens)
        request.lengths = {role.name: found for role in self.sizing.roles}
        self.running.append(request)
        if self.kv.reserve(request, len(request.tokens) - found) is None:
            self.pause(request)

    @precondition(lambda self: self.running)
    @rule(which=pick, rows=strategies.integers(1, 4), drafted=strategies.booleans())
    def chunk(self, which, rows, drafted):
        """Known tokens; after the last of them one more is chosen."""
        request = self.one(which)
        n = min(rows, len(request.tokens) - request.computed)
        if len(request.tokens) >= request.limit or self.kv.reserve(request, n) is None:
            return
        self.write(request, TARGET, request.computed, n)
        last = request.computed + n == len(request.tokens)
        self.keep(request, range(n), [next(self.tokens) % 2] if last else [], drafted)

    @precondition(lambda self: any(len(r.tokens) - r.computed == 1 for r in self.running))
    @rule(
        which=pick,
        drafts=strategies.integers(1, DRAFTS),
        path=strategies.sets(strategies.integers(1, DRAFTS)),
        drafted=strategies.booleans(),
    )
    def verify(self, which, drafts, path, drafted):
        """A tree of drafts, of which any path is kept."""
        ready = [
            r for r in self.running if len(r.tokens) - r.computed == 1 and len(r.tokens) + drafts < min(r.limit, TOKENS)
        ]
        if not ready:
            return
        request = ready[which % len(ready)]
        if self.kv.reserve(request, 1 + drafts) is None:
            return
        start, tokens = request.computed, [next(self.tokens) % 2 for _ in range(drafts)]
        kept = sorted(row for row in path if row <= drafts)
        path = [0, *kept]
        request.tokens += [tokens[row - 1] for row in kept]
        for pool in self.pools(TARGET):
            for row in range(1 + drafts):
                place = path.index(row) if row in path else None
                number = (
                    self.number(request, start + 1 + place)
                    if place is not None
                    else self.number(request, start, (row, *tokens))
                )
                self.put(pool, request.row, start, row, number, place)
        self.keep(request, path, [next(self.tokens) % 2], drafted)

    def put(self, pool, row, start, window_row, number, place=None):
        """Write as a forward does: to the entry, and of strided pools to the stage too."""
        space = pool.placement
        if isinstance(space, StateSpace):
            self.data[id(pool)][space.state_at(row, start + window_row + 1)] = number
        elif space.geometry.stride == 1:
            self.data[id(pool)][space.at(row, start + window_row)] = number
        elif window_row < space.geometry.stage:
            self.data[id(pool)][space.stage_at(row, window_row)] = number

    def pools(self, role):
        return [pool for (name, _), pool in self.kv._pools.items() if name == role]

    def write(self, request, role, start, n):
        for pool in self.pools(role):
            stride, space = pool.spec.stride, pool.placement
            for row in range(n):
                number = self.number(request, start + row + 1)
                if isinstance(space, StateSpace):
                    self.put(pool, request.row, start, row, number)
                    continue
                if (start + row + 1) % stride == 0:
                    self.data[id(pool)][space.at(request.row, (start + row) // stride)] = number
                if stride > 1 and row < space.geometry.stage:
                    self.data[id(pool)][space.stage_at(request.row, row)] = number

    def keep(self, request, path, chosen, drafted):
        start = request.computed
        self.kv.commit(request, path)
        end = start + len(path)
        before = request.lengths.get(DRAFT, 0)
        request.lengths = {r: end if r == TARGET else min(n, end) for r, n in request.lengths.items()}
        if DRAFT in request.lengths and drafted and before == start:
            self.write(request, DRAFT, start, len(path))
            request.lengths[DRAFT] = end
        request.tokens += chosen
        if len(request.tokens) >= min(request.limit, TOKENS):
            self.release(request)

    @precondition(lambda self: 0 < len(self.running) < ROWS)
    @rule(which=pick)
    def fork(self, which):
        parent = self.one(which)
        child = Request(f"r{next(self.ids)}", parent.prompt, parent.params, 0, tokens=list(parent.tokens))
        child.cache_key, child.row, child.lengths = parent.cache_key, self.rows.pop(), dict(parent.lengths)
        before = self.kv.usage()
        try:
            self.kv.fork(parent, child)
        except RequestError:
            assert self.kv.usage() == before
            self.rows.append(child.row)
        else:
            self.running.append(child)

    @precondition(lambda self: self.running)
    @rule(which=pick)
    def abort(self, which):
        self.release(self.one(which))

    @precondition(lambda self: self.running)
    @rule(which=pick)
    def preempt(self, which):
        self.pause(self.one(which))

    @precondition(lambda self: self.waiting and len(self.running) < ROWS)
    @rule(which=pick)
    def start_again(self, which):
        self.admit(self.waiting.pop(which % len(self.waiting)))

    @precondition(lambda self: self.waiting)
    @rule(which=pick)
    def forget(self, which):
        self.kv.release(self.waiting.pop(which % len(self.waiting)))

    def pause(self, request):
        self.kv.preempted(request)
        self.release(request)
        self.waiting.append(request)

    def release(self, request):
        self.kv.release(request)
        self.running.remove(request)
        self.rows.append(request.row)
        request.row = 0

    @rule()
    def reset(self):
        self.kv.reset()

    @invariant()
    def everybody_has_what_he_computed(self):
        for request in getattr(self, "running", ()):
            for (role, _), pool in self.kv._pools.items():
                computed, spec = request.lengths[role], pool.spec
                if isinstance(pool.placement, StateSpace):
                    state = self.data[id(pool)][pool.placement.state_at(request.row, computed)]
                    assert not computed or state == self.number(request, computed)
                    continue
                entries = computed // spec.stride
                first = max(entries - spec.window, 0) if spec.window is not None else 0
                for entry in range(first, entries):
                    slot = pool.placement.at(request.row, entry)
                    assert slot >= pool.placement.per_page, "an entry lies on the null page"
                    assert self.data[id(pool)][slot] == self.number(request, (entry + 1) * spec.stride)

    @invariant()
    def every_page_has_its_owners(self):
        for space in self.kv._paged if hasattr(self, "kv") else ():
            pages, held = space.pages, [page for own in space.held.values() for page in own if page]
            assert set(space.held) <= {request.row for request in self.running}
            assert Counter(held) == pages._holders, "holders are not those that hold"
            assert sorted([*pages._free, *pages._cached, *pages._holders]) == list(range(1, pages.count + 1))
            assert all(space.index.holds(page) for page in pages._cached)
            for page, owners in Counter(held).items():
                if owners > 1:
                    own = [(r, space.held[r.row].index(page)) for r in self.running if page in space.held[r.row]]
                    partial = {r.computed for r, at in own if r.computed < (at + 1) * self.page}
                    assert len(partial) <= 1, "a page is shared, not full, and somebody has written to it"

    @invariant()
    def nobody_holds_a_checkpoint(self):
        for space in self.kv._states if hasattr(self, "kv") else ():
            assert not space.pages.used
            assert not space._found
            assert len(space.index) == space.pages.cached

    @invariant()
    def host_memory_is_of_those_that_wait(self):
        swap = self.kv._swap if hasattr(self, "kv") else None
        if swap:
            assert set(swap._saved) <= {request.id for request in self.waiting}
            for i, store in enumerate(swap._stores):
                saved = [page for one in swap._saved.values() for page in one.pages[i].values()]
                assert sorted(saved) == sorted(store.pages._holders)

    def teardown(self):
        if hasattr(self, "kv"):
            for request in list(self.running):
                self.release(request)
            for request in self.waiting:
                self.kv.release(request)
            self.every_page_has_its_owners()
            assert self.kv._swap is None or not self.kv._swap.used
            assert all(space.pages.used == 0 for space in self.kv._paged)
            assert self.kv.usage()["used_tokens"] == 0
            assert not self.kv._sharing._pending
            self.kv.reset()
            assert all(len(space.pages._free) == space.pages.count for space in self.kv._paged)


def run(programs, phases=tuple(Phase)):
    chosen = settings(
        max_examples=programs, stateful_step_count=20, deadline=None, derandomize=True, database=None, phases=phases
    )
    run_state_machine_as_test(Programs, settings=chosen)


def test_any_program_leaves_every_page_with_its_owners():
    run(PROGRAMS)


def write_to_the_shared_partial_page(monkeypatch):
    monkeypatch.setattr(PagedSpace, "is_shared", lambda space, row, tokens: False)


def part_without_a_copy(monkeypatch):
    real = PagedSpace.part
    monkeypatch.setattr(PagedSpace, "part", lambda space, row, tokens: real(space, row, tokens)[:0])


def keep_what_host_memory_has(monkeypatch):
    monkeypatch.setattr("byref_paged_kv.swap.Swap.drop", lambda *args: None)


def take_another_state(monkeypatch):
    monkeypatch.setattr(StateSpace, "restore", lambda space, row, tokens: [])


def publish_a_page_too_early(monkeypatch):
    real = Sharing.publish

    def publish(sharing, request):
        lengths = dict(request.lengths)
        request.lengths = {role: min(n + 2, len(request.tokens)) for role, n in lengths.items()}
        real(sharing, request)
        request.lengths = lengths

    monkeypatch.setattr(Sharing, "publish", publish)


def give_a_page_of_the_window_back(monkeypatch):
    real = PagedSpace.slide
    monkeypatch.setattr(PagedSpace, "slide", lambda space, row, tokens: real(space, row, tokens + 3))


def keep_what_was_released(monkeypatch):
    monkeypatch.setattr(PagedSpace, "give", lambda space, row: space.held.pop(row, None))


def forget_the_key(monkeypatch):
    monkeypatch.setattr("byref_paged_kv.sharing.typed", lambda parts: ())


MUTATIONS = [
    write_to_the_shared_partial_page,
    part_without_a_copy,
    keep_what_host_memory_has,
    take_another_state,
    publish_a_page_too_early,
    give_a_page_of_the_window_back,
    keep_what_was_released,
    forget_the_key,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_the_programs_notice_what_is_broken(mutate, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011  the model's assertion, or the KV's own confusion
        run(PROGRAMS, (Phase.generate,))
