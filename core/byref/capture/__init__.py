"""Graphs on CUDA, the tape on the CPU: one code path."""

from __future__ import annotations

from byref.capture.base import Capture, Eager

__all__ = ["Capture", "Eager", "make_capture"]


def make_capture(*args: object) -> Capture:
    return Eager()
