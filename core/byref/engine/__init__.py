"""The engine: requests in, chunks out."""

from byref.engine.engine import Engine
from byref.engine.live import Chunk, Completion, Timings

__all__ = ["Chunk", "Completion", "Engine", "Timings"]
