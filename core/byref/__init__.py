"""byref: an inference runtime whose features are plugins. Importing it imports no torch."""

from typing import TYPE_CHECKING, Any

from byref.contract.plugin import API_VERSION, Plugin, PluginInfo, hookimpl

if TYPE_CHECKING:
    from byref.api import LLM
    from byref.contract.requests import SamplingParams
    from byref.engine import Chunk, Completion

__version__ = "0.1.0"

__all__ = [
    "API_VERSION",
    "LLM",
    "Chunk",
    "Completion",
    "Plugin",
    "PluginInfo",
    "SamplingParams",
    "__version__",
    "hookimpl",
]

_LATE = {
    "LLM": "byref.api",
    "Chunk": "byref.engine",
    "Completion": "byref.engine",
    "SamplingParams": "byref.contract.requests",
}
"""Names that are imported when they are asked for: most bring torch along."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
