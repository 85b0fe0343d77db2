"""`byref env`: what a bug report needs. Knows names of libraries and folders; starts no engine."""

from __future__ import annotations

import os
import platform
import sys

from byref import API_VERSION, __version__
from byref.plugins.discovery import scan, version_of

LIBRARIES = ("torch", "transformers", "tokenizers", "gguf", "safetensors", "numpy", "triton", "pluggy", "pydantic")


def env() -> None:
    """Print versions, devices, threads, folders and the plugins that are installed."""
    facts = {
        "byref": f"{__version__}, plugin API {API_VERSION}",
        "python": f"{platform.python_version()} at {sys.executable}",
        "platform": platform.platform(),
        **{name: version_of(name) or "not installed" for name in LIBRARIES},
        **_devices(),
        **_folders(),
        "plugins": ", ".join(str(one) for candidates in scan().values() for one in candidates) or "none",
        "variables": ", ".join(sorted(name for name in os.environ if name.startswith("BYREF_"))) or "none",
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def _devices() -> dict[str, str]:
    import torch

    cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    return {
        "devices": ", ".join(["cpu", *cuda]),
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} processors",
        "cuda": torch.version.cuda or "not in this torch",
    }


def _folders() -> dict[str, str]:
    from byref.loading.catalog import CATALOG, models_folder

    there = [alias for alias, entry in CATALOG.items() if entry.path.exists()]
    return {"models": f"{models_folder()} ({', '.join(there) or 'nothing pulled yet'})"}
