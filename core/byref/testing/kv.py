"""What every KV must do, as a class of tests to subclass. Knows the contract; must not know any KV.

Example:
    class TestMine(KVSuite):
        def make(self, sizing):
            kv = MyKV(sizing)
            return kv, lambda: None, kv.refill
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from byref.contract.errors import ByrefError, RequestError
from byref.contract.requests import Request
from byref.contract.roles import DRAFT, KV, TARGET, RoleSizing, Sizing
from byref.contract.specs import PoolSpec
from byref.contract.step import Window
from byref.testing.desk import Desk, PrepareForward, PrepareStep

DRAFTS = 4
CHAIN = (50, 51, 52, 53)
TREE = ((60, 61, 62, 63), (0, 0, 1, 3))
"""Drafts, and the row each continues when one token is known: 60 and 61 are siblings, 62 continues 60, 63 62."""
PATHS = {"root": (0,), "left": (0, 1), "right": (0, 2), "deep": (0, 1, 3, 4)}


class Small:
    """A codec that is exact for what the suite writes, and narrower than its values."""

    dtype = torch.int8

    def width(self, width: int) -> int:
        """One byte each, and one that is always 7."""
        return width + 1

    def encode(self, values: Tensor) -> Tensor:
        return torch.cat((values.to(torch.int8), torch.full_like(values[:, :1], 7, dtype=torch.int8)), -1)

    def decode(self, stored: Tensor) -> Tensor:
        assert bool((stored[:, -1] == 7).all() or not stored.numel())
        return stored[:, :-1].float()


def pools() -> tuple[PoolSpec, ...]:
    """One pool of every kind, some of them in a draft role too."""

    def spec(name: str, role: str = TARGET, **more: object) -> PoolSpec:
        return PoolSpec(name=name, role=role, width=3, dtype=torch.float32, **more)  # type: ignore[arg-type]

    return (
        spec("whole"),
        replace(spec("wider"), width=5),
        spec("coded", codec=Small()),
        spec("last_five", window=5),
        spec("every_third", stride=3),
        spec("every_other_newest", stride=2, window=2),
        spec("state", per="request", versions=DRAFTS + 1),
        spec("whole", DRAFT),
        spec("newest", DRAFT, window=4, codec=Small()),
    )


def sizing(**changes: object) -> Sizing:
    """Four requests of up to 48 tokens in a target and a draft role."""
    roles = (RoleSizing(TARGET, 0, 1, 0), RoleSizing(DRAFT, 1, 1, 0))
    whole = Sizing(
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_requests=4,
        max_rows=64,
        max_context=48,
        max_drafts=DRAFTS,
        kv_tokens=4 * (48 + DRAFTS),
        captured=frozenset(),
        roles=roles,
        pools=pools(),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0) -> list[int]:
    """A random prompt."""
    draw = random.Random(seed)
    return [draw.randrange(40) for _ in range(length)]


class KVSuite:
    """Subclass it, say how a KV is made, and pytest collects every test."""

    def make(self, sizing: Sizing) -> tuple[KV, PrepareStep, PrepareForward]:
        """A fresh KV, what runs once the plan of a step stands, and what runs first in every forward."""
        raise NotImplementedError

    def desk(self, **changes: object) -> Desk:
        """A driver of a fresh KV."""
        size = sizing(**changes)
        return Desk(*self._with_size(size))

    def _with_size(self, size: Sizing) -> tuple[KV, Sizing, PrepareStep, PrepareForward]:
        kv, step, forward = self.make(size)
        return kv, size, step, forward

    @pytest.mark.parametrize("chunk", [1, 3, 7, 0])
    def test_chunks_of_a_prompt_are_read_back(self, chunk: int) -> None:
        desk = self.desk()
        for n in (20, 1, 13):
            desk.prefill(desk.add(prompt(n, n)), chunk)
        desk.check()

    @pytest.mark.parametrize("before", [1, 5, 6, 7])
    @pytest.mark.parametrize("kept", range(5))
    def test_a_chain_keeps_what_was_accepted(self, kept: int, before: int) -> None:
        desk = self.desk()
        request = desk.add(prompt(before))
        desk.prefill(request)
        for _ in range(3):
            window = desk.window(request, 0, CHAIN)
            assert desk.forward(window)
            desk.keep(window, range(1 + kept), 9)
            desk.check()

    @pytest.mark.parametrize("before", [1, 5, 6, 7])
    @pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
    def test_a_path_of_a_tree_is_kept_in_order(self, path: tuple[int, ...], before: int) -> None:
        desk = self.desk()
        request = desk.add(prompt(before))
        desk.prefill(request)
        for _ in range(3):
            window = desk.window(request, 0, *TREE)
            assert desk.forward(window)
            desk.keep(window, path, 9)
            desk.check()

    def test_windows_and_strides_over_a_long_request(self) -> None:
        desk = self.desk()
        request = desk.add(prompt(3), 40)
        desk.prefill(request)
        for i in range(40):
            desk.prefill(request, chosen=i)

    @pytest.mark.parametrize("length", [1, 4, 5, 16, 17])
    def test_forks_go_their_own_ways(self, length: int) -> None:
        desk = self.desk()
        parent = desk.add(prompt(length), 20)
        desk.prefill(parent)
        children = [desk.fork(parent), desk.fork(parent)]
        children.append(desk.fork(children[0]))
        for i in range(9):
            for j, request in enumerate((parent, *children)):
                desk.prefill(request, chosen=10 * i + j)
            desk.check()
        desk.release(parent)
        desk.check()

    def test_a_fork_without_room_is_an_error_of_the_request(self) -> None:
        """Until there is none left; what was refused has left nothing behind."""
        desk = self.desk(kv_tokens=40)
        parent = desk.add(prompt(26), 10)
        desk.prefill(parent)
        for _ in range(3):
            before, refused = dict(desk.kv.usage()), ""
            try:
                desk.fork(parent)
            except RequestError as error:
                refused = str(error)
            if refused:
                assert parent.id in refused
                assert dict(desk.kv.usage()) == before
        for request in list(desk.requests.values())[1:]:
            desk.release(request)
        desk.check(parent)

    def test_all_comes_back(self) -> None:
        desk = self.desk()
        idle = dict(desk.kv.usage())
        assert idle["used_tokens"] == 0
        for round in range(6):
            requests = [desk.add(prompt(3 + 4 * i, 3 * round + i), 9) for i in range(3)]
            for request in requests:
                desk.prefill(request, 5)
            requests.append(desk.fork(requests[1]))
            assert 0 < desk.kv.usage()["used_tokens"] <= desk.kv.usage()["capacity_tokens"]
            for request in requests[round % 3 :] + requests[: round % 3]:
                desk.release(request)
            assert dict(desk.kv.usage()) == idle

    def test_what_can_never_fit_is_refused_with_both_numbers(self) -> None:
        desk = self.desk(kv_tokens=24)
        refusal, room = desk.kv.refusal(desk.make(prompt(30), 10)), desk.kv.usage()["capacity_tokens"]
        assert (refusal is None) == (room >= 40 + DRAFTS)
        assert refusal is None or (str(40 + DRAFTS) in refusal and str(room) in refusal)
        assert desk.kv.refusal(desk.make(prompt(6), 4)) is None

    def test_short_of_room_a_reservation_waits_and_then_is_granted(self) -> None:
        desk = self.desk(kv_tokens=48)
        first = desk.add(prompt(38), 6)
        desk.prefill(first)
        second = desk.make(prompt(37, 1), 6)
        assert not desk.admit(second)
        desk.check(first)
        desk.release(first)
        assert desk.admit(second)
        desk.prefill(second)
        desk.check()

    def test_rows_that_are_not_in_the_forward_have_no_slots(self) -> None:
        desk = self.desk()
        here, away = desk.add(prompt(9)), desk.add(prompt(9, 1))
        desk.prefill(here)
        desk.prefill(away)
        desk.check(here)
        for spec in desk.pools:
            if spec.role == TARGET:
                pool = desk.kv.pool(TARGET, spec.name)
                assert not pool.slots(torch.tensor([away.row, 0, 4]), torch.zeros(3, dtype=torch.int64)).any()

    def test_an_idle_forward_changes_nothing(self) -> None:
        desk = self.desk()
        request = desk.add(prompt(9))
        desk.prefill(request)
        desk.idle(TARGET)
        desk.idle(DRAFT)
        desk.check()

    def test_pools_of_one_space_give_equal_slots(self) -> None:
        desk = self.desk()
        request = desk.add(prompt(11))
        desk.prefill(request)
        desk.check()
        found: dict[object, list[int]] = {}
        for spec in desk.pools:
            pool = desk.kv.pool(spec.role, spec.name)
            slots = pool.slots(torch.tensor(request.row), torch.arange(12)).tolist()
            assert found.setdefault(pool.space, slots) == slots
        assert desk.kv.pool(TARGET, "whole").space == desk.kv.pool(TARGET, "wider").space
        assert desk.kv.pool(TARGET, "whole").space != desk.kv.pool(DRAFT, "whole").space

    def test_an_unknown_pool_is_named(self) -> None:
        with pytest.raises(ByrefError, match=r"no pool 'nothing' in role target"):
            self.desk().kv.pool(TARGET, "nothing")

    @pytest.mark.parametrize("kept", [0, 2, 4])
    def test_a_draft_role_keeps_the_target_s_path(self, kept: int) -> None:
        """Its rows for the window were computed while it drafted; commit compacts them too."""
        desk = self.desk()
        request = desk.add(prompt(6))
        desk.prefill(request)
        for _ in range(3):
            self._catch_up(desk, request)
            window = desk.window(request, 0, CHAIN)
            drafted = replace(window, role=DRAFT, drafts=0)
            desk.forward(window)
            desk.draft(DRAFT, drafted)
            desk.keep(window, range(1 + kept), 9)
            assert request.lengths[DRAFT] == request.computed
        self._catch_up(desk, request)

    @pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
    def test_a_draft_role_keeps_a_tree_s_path(self, path: tuple[int, ...]) -> None:
        desk = self.desk()
        request = desk.add(prompt(6))
        desk.prefill(request)
        for _ in range(3):
            self._catch_up(desk, request)
            window = desk.window(request, 0, *TREE)
            assert desk.forward(window)
            desk.draft(DRAFT, replace(window, role=DRAFT))
            request.lengths[DRAFT] = window.end
            desk.keep(window, path, 9)
        self._catch_up(desk, request)

    def _catch_up(self, desk: Desk, request: Request) -> None:
        """Rows of the draft role up to what the target has computed; its pools are checked on the way."""
        start, end = request.lengths[DRAFT], request.computed
        tokens = tuple(request.tokens[start:end])
        if tokens:
            desk.draft(DRAFT, Window(request.id, request.row, DRAFT, start, tokens, prompt=True))
        probe = Window(request.id, request.row, DRAFT, end, (request.tokens[end],))
        desk.draft(DRAFT, probe)
        request.lengths[DRAFT] = end

    @pytest.mark.parametrize("seed", range(12))
    def test_random_programs(self, seed: int) -> None:
        """Whatever is done in whatever order, every forward reads what the tokens say."""
        draw, desk = random.Random(seed), self.desk()
        for _ in range(60):
            act = draw.choice((self._add, self._advance, self._advance, self._advance, self._fork, self._release))
            act(desk, draw)
        desk.check()
        for request in list(desk.requests.values()):
            desk.release(request)
        assert desk.kv.usage()["used_tokens"] == 0

    def _add(self, desk: Desk, draw: random.Random) -> None:
        if len(desk.requests) < desk.sizing.max_requests:
            shared = prompt(draw.choice((4, 9, 16)), draw.randrange(2))
            desk.admit(desk.make([*shared, *prompt(draw.randrange(1, 9), draw.randrange(99))], 16))

    def _advance(self, desk: Desk, draw: random.Random) -> None:
        """One forward of several requests: chunks of prompts beside drafts."""
        windows: list[Window] = []
        paths: list[Sequence[int]] = []
        for request in list(desk.requests.values()):
            if len(request.tokens) >= request.limit or draw.random() < 0.3:
                continue
            rest, drafts = len(request.tokens) - request.computed, draw.randrange(DRAFTS + 1)
            if rest > 1 or request.generated + drafts > 15:
                windows.append(desk.window(request, draw.randint(1, rest)))
                paths.append(range(len(windows[-1].tokens)))
            else:
                tokens = [draw.randrange(40) for _ in range(drafts)]
                windows.append(desk.window(request, 0, tokens, self._tree(draw, drafts)))
                paths.append(windows[-1].lineage(draw.randrange(1 + drafts)))
        if windows and desk.forward(*windows):
            for window, path in zip(windows, paths, strict=True):
                whole = window.start + window.known == len(desk.requests[window.request].tokens)
                desk.keep(window, path, draw.randrange(40) if whole else None)

    def _tree(self, draw: random.Random, drafts: int) -> list[int]:
        """Rows that the drafts continue, with one known row: any row before their own."""
        return [draw.randrange(i + 1) for i in range(drafts)]

    def _fork(self, desk: Desk, draw: random.Random) -> None:
        if 0 < len(desk.requests) < desk.sizing.max_requests:
            parent = draw.choice(list(desk.requests.values()))
            if parent.computed:
                with contextlib.suppress(RequestError):  # there is no room
                    desk.fork(parent)

    def _release(self, desk: Desk, draw: random.Random) -> None:
        if desk.requests and draw.random() < 0.6:
            desk.release(draw.choice(list(desk.requests.values())))
