"""Memory of a server that goes on for long: taken at the start, and not more with every request."""

import asyncio
import gc
import os
import sys
from pathlib import Path

import pytest
from serving import serving
from soak import Soak

ROUND = 20
"""Requests of each of 16 clients."""


@pytest.fixture(scope="module")
def paged(talker):
    plugin = pytest.importorskip("byref_paged_kv").PagedKVPlugin
    with serving(talker, {"paged_kv": plugin}, {"paged_kv": {"num_pages": 40}}) as server:
        yield server


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_cache_is_in_memory_from_the_start(talker):
    plugin = pytest.importorskip("byref_paged_kv").PagedKVPlugin
    before = resident()
    with serving(talker, {"paged_kv": plugin}, {"paged_kv": {"num_pages": 12000}}) as server:
        cache = sum(buffer.nbytes for buffer in server.engine.parts.kv.buffers().values())
        assert cache > 64 << 20, "too small to tell"
        assert resident() - before > 0.9 * cache


def one_round(server, seed) -> None:
    """Requests of all kinds; the clients' own memory is theirs and gone afterwards."""
    soak = Soak(server.url, lambda draw: [draw.randrange(256) for _ in range(draw.randint(1, 40))], most=8, seed=seed)
    assert asyncio.run(soak.run(16, lambda made: made < ROUND)).wrong == []
    server.assert_idle()


def held() -> tuple[int, int]:
    """Objects that Python follows, and blocks of its memory."""
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks()


def test_hundreds_of_requests_leave_nothing_behind(paged):
    for seed in range(2):
        one_round(paged, seed)
    figures = len(paged.figures())  # the first time that somebody asks, more is made
    objects, blocks = held()
    for seed in range(2, 4):
        one_round(paged, seed)
    more_objects, more_blocks = (now - before for now, before in zip(held(), (objects, blocks), strict=True))
    requests = 2 * 16 * ROUND
    assert more_objects < requests / 2, "something is kept of every other request"
    assert more_blocks < requests
    assert len(paged.figures()) == figures, "figures by request"
    assert len(paged.desk.worker._replies) == len(paged.desk.open) == len(paged.engine._live) == 0
