"""A tiny checkpoint of each sparse family with its oracle, which is asked once."""

from __future__ import annotations

from functools import cache

import pytest
from equality import Remembered
from families import SPARSE, save_family


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """By the family's name: its folder and its oracle."""

    @cache
    def made(name: str):
        folder = save_family(tmp_path_factory.mktemp(name), name)
        return folder, Remembered(folder)

    return made


@pytest.fixture(params=SPARSE)
def family(request, checkpoints):
    """Its name, its folder and its oracle."""
    return request.param, *checkpoints(request.param)
