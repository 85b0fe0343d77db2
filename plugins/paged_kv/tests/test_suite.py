"""The paged KV passes the suite of every KV, whatever its page size."""

from __future__ import annotations

from byref.testing.kv import KVSuite, prompt
from byref_paged_kv import Options
from byref_paged_kv.kv import PagedKV
from byref_paged_kv.space import PagedSpace


class Paged(KVSuite):
    options = Options()

    def make(self, sizing):
        kv = PagedKV(sizing, self.options)
        return kv, kv.publish_tables, kv.refill


class TestPagesOf1(Paged):
    options = Options(page_size=1)


class TestPagesOf4(Paged):
    options = Options(page_size=4)


class TestPagesOf16(Paged):
    options = Options(page_size=16)


class TestPagesOf64(Paged):
    options = Options(page_size=64)


def test_a_fork_gets_a_page_of_its_own_when_somebody_writes():
    """Those who write first get a copy of the partial page, and the last keeps it."""
    desk = TestPagesOf4().desk()
    parent, pages = desk.add(prompt(desk.kv._page_tokens + 1), 9), desk.kv._paged[0].pages
    desk.prefill(parent)
    children = [desk.fork(parent), desk.fork(parent)]
    assert pages.used == 2
    assert desk.kv._paged[0].held[parent.row] == desk.kv._paged[0].held[children[1].row]
    for writer, used in ((children[0], 3), (parent, 4), (children[1], 4)):
        desk.check(writer)
        assert pages.used == used
    desk.check()


def test_a_fork_at_the_end_of_a_page_copies_nothing(monkeypatch):
    monkeypatch.delattr(PagedSpace, "part")
    desk = TestPagesOf4().desk()
    parent = desk.add(prompt(2 * desk.kv._page_tokens), 9)
    desk.prefill(parent)
    child = desk.fork(parent)
    desk.check(child)
    desk.check()
    held = desk.kv._paged[0].held
    assert held[child.row][:2] == held[parent.row][:2]
    assert held[child.row][2] != held[parent.row][2]


class TestPagesOf5WithoutPrefixCache(Paged):
    options = Options(page_size=5, prefix_cache=False)
