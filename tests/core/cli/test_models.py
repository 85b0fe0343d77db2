"""The list of models."""

import json

import pytest

from byref.loading.catalog import CATALOG


def test_nothing_is_here_yet(byref, here):
    code, out, _ = byref("models")
    assert code == 0
    assert "smollm2      not here, 92.9 MB to fetch" in out
    assert "LlamaForCausalLM" in out
    assert "models (byref 0." in out
    assert "hub" not in out


@pytest.fixture
def cached(here):
    """A model that was pulled, another file, and a repository in the hub's cache."""
    entry = CATALOG["smollm2"]
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(b"x" * 2000)
    (entry.path.parent / "mine.gguf").write_bytes(b"x" * 3000)
    snapshot = here / "hub" / "models--org--name" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (here / "hub" / "models--org--name" / "refs").mkdir()
    (here / "hub" / "models--org--name" / "refs" / "main").write_text("a" * 40)
    return entry.path


def test_what_is_in_the_caches(byref, cached, monkeypatch, here):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "hub"))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(here / "hub"), raising=False)
    code, out, _ = byref("models", "--json")
    assert code == 0
    found = json.loads(out)
    (smollm2,) = [row for row in found["models"] if row["name"] == "smollm2"]
    assert (smollm2["size"], smollm2["path"]) == ("2.0 kB", str(cached))
    assert found["files"] == [{"name": "mine.gguf", "size": "3.0 kB"}]
    assert [row["name"] for row in found["hub"]] == ["org/name"]


def test_architectures_are_those_of_enabled_plugins(byref):
    _, out, _ = byref("models", "--no-plugins", "--json")
    assert json.loads(out)["architectures"] == []
