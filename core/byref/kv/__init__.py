"""The contiguous default of the KV role: plain, because it is the oracle."""

from byref.kv.contiguous import ContiguousKV

__all__ = ["ContiguousKV"]
