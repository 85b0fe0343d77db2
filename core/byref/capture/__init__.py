"""Graphs on CUDA, the tape on the CPU: one code path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from byref.capture.base import Capture, Eager
from byref.contract.context import Kind, StateMap
from byref.contract.roles import Sizing
from byref.plugins.binder import Bound

if TYPE_CHECKING:
    from byref.engine.batch import RowBatch

__all__ = ["Capture", "Eager", "make_capture"]

CHECK = "BYREF_CAPTURE_CHECK"
"""Environment variable: 1 compares every buffer's address before each replay of a graph."""


def make_capture(
    sizing: Sizing, maps: Sequence[StateMap], batches: Sequence[RowBatch], bound: Sequence[Bound]
) -> Capture:
    """The capture of what `sizing.captured` says: nothing, every kind (the tape), or those of fixed shape (graphs)."""
    if not sizing.captured:
        return Eager()
    if sizing.captured == frozenset(Kind):
        from byref.capture.tape import Tape

        return Tape(maps, batches, bound)
    from byref.capture.cuda import Graphs

    return Graphs(sizing.captured, maps, bound, os.environ.get(CHECK) == "1")
