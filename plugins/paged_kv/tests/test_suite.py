"""The paged KV passes the suite of every KV, whatever its page size."""

from __future__ import annotations

from byref.testing.kv import KVSuite
from byref_paged_kv import Options
from byref_paged_kv.kv import PagedKV


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


class TestPagesOf5WithoutPrefixCache(Paged):
    options = Options(page_size=5, prefix_cache=False)
