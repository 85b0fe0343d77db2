"""Every kind of pool holds what a plain list holds, after any windows, commits, forks and releases."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seams import Negated
from windows import Rows, request, sizing_of

from byref.contract import Request, Window
from byref.contract.roles import TARGET
from byref.contract.specs import PoolSpec

WIDTH, MOST_DRAFTS = 3, 6


def pool(name, **changes):
    return PoolSpec(name=name, width=WIDTH, dtype=torch.float32, **changes)


POOLS = {
    "every": pool("every"),
    "every, encoded": pool("every, encoded", codec=Negated()),
    "fourth": pool("fourth", stride=4),
    "third of eight": pool("third of eight", stride=3, window=2),
    "last five": pool("last five", window=5),
    "state": pool("state", per="request", versions=MOST_DRAFTS + 1),
    "more states": pool("more states", per="request", versions=11, codec=Negated()),
}


@dataclass
class Kept:
    """A request, and the numbers of the rows it kept."""

    request: Request
    kept: list[int] = field(default_factory=list)


class World:
    """Pools on a KV, and beside them the plain lists."""

    def __init__(self, seed: int, padded: bool) -> None:
        self.draw = random.Random(seed)
        self.rows = Rows(sizing_of(POOLS.values(), padded=padded, max_drafts=MOST_DRAFTS))
        self.pools = {name: self.rows.kv.pool(TARGET, name) for name in POOLS}
        for one in self.pools.values():
            one.data[1:] = float("nan")
        self.alive: list[Kept] = []
        self.number = self.names = 0

    def act(self) -> None:
        free = set(range(1, self.rows.sizing.max_requests + 1)) - {s.request.row for s in self.alive}
        ways = (
            ["forward"] * 6
            + ["admit"] * 2 * bool(free)
            + ["fork"] * bool(free and self.alive)
            + ["release"] * bool(self.alive)
        )
        way = self.draw.choice(ways)
        if way == "forward":
            self.forward()
        elif way == "release":
            self.rows.kv.release(self.alive.pop(self.draw.randrange(len(self.alive))).request)
        else:
            self.join(self.draw.choice(sorted(free)), self.draw.choice(self.alive) if way == "fork" else None)

    def join(self, row: int, parent: Kept | None) -> None:
        self.names += 1
        new = request(f"r{self.names}", row, 30, 22)
        if parent is None:
            assert self.rows.kv.reserve(new, 1) is not None
        else:
            self.rows.kv.fork(parent.request, new)
            new.lengths = dict(parent.request.lengths)
        self.alive.append(Kept(new, list(parent.kept) if parent else []))

    def forward(self) -> None:
        """Some requests, in any order, each with part of a prompt or a newest token and drafts."""
        chosen = [s for s in self.draw.sample(self.alive, self.draw.randint(0, len(self.alive))) if len(s.kept) < 50]
        windows = [self.window(s) for s in chosen]
        if sum(len(w.tokens) for w in windows) > 40 or not windows:
            return
        numbers = self.rows.run(windows, lambda ctx: self.body(ctx, chosen, windows))
        for one, window in zip(chosen, windows, strict=True):
            path = self.path(window)
            self.rows.kv.commit(one.request, path)
            one.kept += [numbers[one.request.id][row] for row in path]
            one.request.lengths[TARGET] += len(path)

    def window(self, one: Kept) -> Window:
        start, row = one.request.computed, one.request.row
        base = Window(one.request.id, row, TARGET, start, (1,), prompt=False)
        if self.draw.random() < 0.4:
            return replace(base, tokens=(1,) * self.draw.randint(1, min(9, 52 - start)), prompt=True)
        drafts = self.draw.randint(0, MOST_DRAFTS)
        tree = self.draw.random() < 0.6
        parents = tuple(self.draw.randint(0, i) if tree else i for i in range(drafts))
        return replace(base, tokens=(1,) * (1 + drafts), drafts=drafts, parents=parents)

    def path(self, window: Window) -> tuple[int, ...]:
        """All known rows, and drafts along parents."""
        if not window.drafts:
            return tuple(range(len(window.tokens)))
        return window.lineage(self.draw.randrange(len(window.tokens)))

    def body(self, ctx, chosen, windows) -> dict[str, list[int]]:
        """Check what was kept; write every row's number; check that the forward sees its own rows."""
        for one, window in zip(chosen, windows, strict=True):
            self.check(one, window)
        values = torch.full((ctx.rows, WIDTH), -7.0)
        numbers: dict[str, list[int]] = {}
        width, at = ctx.rows_per_request, 0
        for window in windows:
            n = len(window.tokens)
            numbers[window.request] = [self.number + 1 + i for i in range(n)]
            values[at : at + n] = torch.tensor(numbers[window.request]).float()[:, None] + torch.arange(WIDTH) * 0.25
            self.number += n
            at += width or n
        for one in self.pools.values():
            one.write(ctx, values)
        for window in windows:
            self.check_own(window, numbers[window.request])
        return numbers

    def check(self, one: Kept, window: Window) -> None:
        """Before the rows are written: what was kept is there, and nothing else but room for the rows."""
        kept, n = one.kept, len(one.kept)
        whole = dict(enumerate(kept))
        there = {
            "every": whole,
            "every, encoded": whole,
            "fourth": {e: kept[4 * e + 3] for e in range(n // 4)},
            "third of eight": {e: kept[3 * e + 2] for e in range(n // 3)[-2:]},
            "last five": {i: kept[i] for i in range(n)[-5:]},
            "state": {n - 1: kept[-1]} if n else {},
            "more states": {n - 1: kept[-1]} if n else {},
        }
        for name, entries in there.items():
            self.expect(name, window.row, entries)
            spec = self.pools[name].spec
            oldest = n - spec.versions if spec.per == "request" else min(entries, default=n // spec.stride)
            others = [i for i in range(-3, 70) if i < oldest or i >= window.end // spec.stride]
            assert not self.pools[name].slots(torch.tensor([window.row]), torch.tensor(others)).any()

    def check_own(self, window: Window, numbers: list[int]) -> None:
        """Rows see each other by cache index; states are those of the newest rows."""
        own = {window.start + i: number for i, number in enumerate(numbers)}
        for name in ("every", "every, encoded", "last five"):
            self.expect(name, window.row, own)
        for name, versions in (("state", MOST_DRAFTS + 1), ("more states", 11)):
            self.expect(name, window.row, dict(list(own.items())[-versions:]))
        if not window.is_tree:
            for name, stride in (("fourth", 4), ("third of eight", 3)):
                closed = {t // stride: number for t, number in own.items() if (t + 1) % stride == 0}
                self.expect(name, window.row, closed)

    def expect(self, name: str, row: int, entries: dict[int, int]) -> None:
        """These entries of a request are there."""
        one = self.pools[name]
        index = torch.tensor(list(entries), dtype=torch.int64)
        found = one.read(one.slots(torch.tensor([row]), index))
        expected = torch.tensor(list(entries.values())).float()[:, None] + torch.arange(WIDTH) * 0.25
        assert torch.equal(found, expected), f"{name}: {found} instead of {expected}"


@pytest.mark.parametrize("padded", [False, True], ids=["eager", "padded"])
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_pools_hold_what_plain_lists_hold(padded, seed):
    world = World(seed, padded)
    for _ in range(40):
        world.act()
    for one in world.alive:
        world.rows.kv.release(one.request)
    assert world.rows.kv.usage()["used_tokens"] == 0
