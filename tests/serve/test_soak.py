"""A short soak: many clients, some of which leave or ask nonsense. The long one is benchmarks/soak.py."""

import asyncio
import threading

import pytest
from serving import serving
from soak import Soak, unlike_solo


def lasting() -> set[str]:
    """Threads, but for the event loop's pool, which is bounded and keeps its own."""
    return {thread.name for thread in threading.enumerate() if not thread.name.startswith(("asyncio_", "uvloop_"))}


def test_64_clients_of_whom_some_leave_and_some_ask_nonsense(talker):
    paged = pytest.importorskip("byref_paged_kv").PagedKVPlugin
    with serving(talker, {"paged_kv": paged}, {"paged_kv": {"num_pages": 80}}) as server:
        threads = lasting()
        soak = Soak(server.url, lambda draw: [draw.randrange(256) for _ in range(draw.randint(1, 60))], most=32)
        soaked = asyncio.run(soak.run(64, lambda made: made < 6))
        assert soaked.wrong == []
        assert set(soaked.statuses) == {200, 400}
        assert soaked.left > 40
        assert len(soaked.answers) > 200
        server.assert_idle()
        assert asyncio.run(unlike_solo(server.url, soaked, 60)) == []
        assert lasting() == threads
        server.assert_idle()
