"""The contiguous default of the KV role, and what other KVs on slots are built from."""

from byref.kv.base import SlotKV
from byref.kv.contiguous import ContiguousKV
from byref.kv.pools import Geometry, SlotPool, Space

__all__ = ["ContiguousKV", "Geometry", "SlotKV", "SlotPool", "Space"]
