"""The tiny checkpoints that every test may use, and property tests that try the same cases on every machine."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from checkpoints import save_llama
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("fixed")

# A shell ignores interrupts for what it runs in the background, and children inherit that; tests interrupt programs.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of four layers, as transformers saves it."""
    return save_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def short_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of two layers, where many steps are run."""
    return save_llama(tmp_path_factory.mktemp("short-llama"), seed=2, num_hidden_layers=2)


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of a single layer, where many engines are started."""
    return save_llama(tmp_path_factory.mktemp("one-layer"), seed=3, num_hidden_layers=1)
