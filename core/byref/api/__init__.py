"""The Python API: what `from byref import LLM` gives. Knows the engine's front door; no tensor."""

from byref.api.llm import LLM

__all__ = ["LLM"]
