"""Speculative decoding as a plugin. Importing it imports no torch."""

from __future__ import annotations

from byref_spec_decoding.plugin import SpecDecoding

__all__ = ["SpecDecoding"]
