"""The default KV passes the suite of every KV."""

from __future__ import annotations

from byref.kv import ContiguousKV
from byref.testing.kv import KVSuite


class TestContiguous(KVSuite):
    def make(self, sizing):
        kv = ContiguousKV(sizing)
        return kv, lambda: None, kv.refill
