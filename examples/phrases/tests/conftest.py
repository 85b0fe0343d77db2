"""A tiny checkpoint, as the tests of byref itself have it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def short_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers, as transformers saves it."""
    from checkpoints import save_llama

    return save_llama(tmp_path_factory.mktemp("short-llama"), seed=2, num_hidden_layers=2)
