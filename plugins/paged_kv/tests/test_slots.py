"""Where rows are written: by the table, to places of their own, never beyond it, and nothing is left out of a swap."""

from __future__ import annotations

import random
from dataclasses import replace

import engines
import pytest
import torch
from checkpoints import VOCABULARY
from drafts import Told
from engines import greedy, together
from equality import TOP, answers, assert_answers
from paging import assert_idle, start

from byref.contract.roles import TARGET
from byref.testing.desk import Desk
from byref.testing.kv import CHAIN, prompt, sizing
from byref_paged_kv import Options
from byref_paged_kv.budget import page_tokens
from byref_paged_kv.kv import PagedKV
from byref_paged_kv.space import PagedSpace


def kv(page_size=4, **options):
    whole = [spec for spec in sizing().pools if spec.role == TARGET and spec.stride == 1 and spec.per == "token"]
    return PagedKV(sizing(pools=tuple(whole)), Options(page_size=page_size, **options))


def space_of(kv) -> PagedSpace:
    return kv.pool(TARGET, "whole").placement


def place(space, row, entries):
    return space.place(torch.full((len(entries),), row), torch.tensor(entries)).tolist()


@pytest.mark.parametrize("page_size", [1, 3, 4, 16])
def test_a_token_lies_where_its_page_says(page_size):
    """Whatever pages a row has got, in whatever order."""
    space, draw = space_of(kv(page_size)), random.Random(page_size)
    pages = draw.sample(range(1, space.pages.count + 1), 30 // page_size + 1)
    space.extend(2, pages)
    entries = range(len(pages) * page_size)
    assert place(space, 2, entries) == [pages[e // page_size] * page_size + e % page_size for e in entries]
    assert place(space, 2, entries) == [space.at(2, e) for e in entries]


@pytest.mark.parametrize("before", range(5, 13))
def test_rows_of_a_window_have_slots_of_their_own_across_the_end_of_a_page(before):
    made = kv()
    desk = Desk(made, made._sizing, made.publish_tables, made.refill)
    request = desk.add(prompt(before))
    desk.prefill(request)
    window = desk.window(request, 0, CHAIN)
    assert desk.forward(window)
    space = space_of(made)
    slots = place(space, request.row, range(window.start, window.end))
    assert len(set(slots)) == len(window.tokens)
    assert slots == [space.at(request.row, entry) for entry in range(window.start, window.end)]
    desk.keep(window, (0,), 9)
    plain = desk.window(request, 1)
    assert desk.forward(plain)
    assert place(space, request.row, [plain.start]) == slots[1:2], "a plain row goes where the first draft went"


def test_what_has_no_page_goes_to_the_sink():
    """Entries beyond the row's pages, beyond the table, behind the window, and of rows that do not run."""
    space = space_of(kv())
    space.pages.take(7)
    space.extend(1, [5, 0, 7])
    assert place(space, 1, [0, 3, 4, 7, 8, 11]) == [20, 23, 0, 0, 28, 31]
    assert place(space, 1, [12, 40, 51, 52, 10_000]) == [0] * 5
    assert place(space, 0, [0, 5, 9]) == place(space, 3, [0, 5, 9]) == [0, 0, 0]
    space.give(1)
    assert place(space, 1, [0, 3, 8]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("page_size", "strides", "tokens"), [(4, (1,), 4), (4, (1, 3), 6), (5, (2, 4), 8), (16, (4,), 16)]
)
def test_a_page_ends_where_an_entry_of_every_stride_does(page_size, strides, tokens):
    spec = sizing().pools[0]
    assert page_tokens([replace(spec, stride=stride) for stride in strides], page_size) == tokens


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_drafts_at_the_end_of_the_longest_request_have_room(short_llama, page_size):
    """Windows go up to so many drafts beyond the longest context, and not one slot further."""
    prompts = [tuple(random.Random(i).randrange(VOCABULARY) for _ in range(20)) for i in range(2)]
    params = [greedy(60, logprobs=TOP)] * 2
    with engines.start(short_llama) as plain:
        expected = answers(plain, prompts, [greedy(28, logprobs=TOP)] * 2)
    options = {"told": {"right": 1.0}}
    with start(short_llama, {"told": Told}, options, paged={"page_size": page_size}, max_context=48) as engine:
        told = engine.parts.host.plugin("told").instance
        told.reference = {p: [*tokens, *[0] * 9] for p, (tokens, _) in zip(prompts, expected, strict=True)}
        assert_answers(together(engine, prompts, params), expected)
        (space,) = engine.parts.kv._paged
        assert space._host.shape[1] == -(-(48 + 5) // page_size)
        assert_idle(engine)


def test_every_pool_goes_to_host_memory_with_its_request():
    made = PagedKV(sizing(), Options(page_size=4, swap_memory=100_000))
    pools = [pool for store in made._swap._stores for pool in store.pools]
    assert sorted(map(id, pools)) == sorted(map(id, made._pools.values()))
    for store in made._swap._stores:
        assert [data.shape[1] for data in store.data] == [pool.data.shape[1] for pool in store.pools]
        assert [data.dtype for data in store.data] == [pool.data.dtype for pool in store.pools]
