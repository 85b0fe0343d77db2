"""Hub ids: what is one, the hub's cache, and sentences where the hub cannot be asked. No network."""

import shutil
from types import SimpleNamespace

import pytest

from byref.contract.errors import ModelError
from byref.loading import hub, open_checkpoint

SHA = "a" * 40
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An empty cache of the hub, and no leave to ask it."""
    cache = tmp_path / "hub"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cache


def cached(cache, repo, source, name=None):
    """Put a folder, or one file under `name`, into the hub's cache as the library does."""
    root = cache / f"models--{repo.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(SHA)
    snapshot = root / "snapshots" / SHA
    if name is None:
        shutil.copytree(source, snapshot)
    else:
        snapshot.mkdir(parents=True)
        shutil.copy(source, snapshot / name)
    return snapshot


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("org/name", True),
        ("org/name-1.5_B", True),
        ("org/name@main", True),
        ("org/name/file.Q4_K.gguf", True),
        ("org/name@refs/pr/1/sub/file.gguf", True),
        ("name", False),
        ("./org/name", False),
        ("/org/name", False),
        ("~/name", False),
        ("org/name/more", False),
        ("models/file.gguf", False),
        ("here/name", False),
        ("org/", False),
        ("../name", False),
    ],
)
def test_what_is_a_hub_id(tmp_path, monkeypatch, source, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert hub.is_hub_id(source) is expected


def test_a_cached_folder_needs_no_network(offline, tiny_llama):
    snapshot = cached(offline, "org/tiny", tiny_llama)
    assert open_checkpoint("org/tiny").path == snapshot
    assert open_checkpoint("org/tiny").architecture == "LlamaForCausalLM"


def test_a_path_comes_before_the_hub(offline, tiny_llama, tmp_path):
    cached(offline, "org/tiny", tiny_llama)
    shutil.copytree(tiny_llama, tmp_path / "org" / "tiny")
    assert str(open_checkpoint("org/tiny").path) == "org/tiny"


def test_a_cached_gguf_file(offline, gguf_of):
    snapshot = cached(offline, "org/tiny", gguf_of(), "tiny.Q8_0.gguf")
    assert open_checkpoint("org/tiny/tiny.Q8_0.gguf").path == snapshot / "tiny.Q8_0.gguf"
    with pytest.raises(ModelError, match=r"has no file other\.gguf|not in the hub's cache"):
        open_checkpoint("org/tiny/other.gguf")


def test_offline_and_not_cached(offline):
    with pytest.raises(ModelError) as error:
        open_checkpoint("org/tiny")
    assert "no file or folder 'org/tiny'" in error.value.what
    assert "HF_HUB_OFFLINE forbids" in error.value.what
    assert "unset HF_HUB_OFFLINE" in error.value.hint


def test_the_hub_does_not_answer(offline, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", NOWHERE)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", NOWHERE, raising=False)
    with pytest.raises(ModelError) as error:
        open_checkpoint("org/tiny")
    assert "the hub cannot be reached: " in error.value.what


def failing(kind):
    from huggingface_hub import errors

    def fails(*_, **__):
        raise getattr(errors, kind)("no", response=SimpleNamespace(headers={}, request=None))

    return fails


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("GatedRepoError", r"only to those who were let in(.|\n)*ask for access at"),
        ("RepositoryNotFoundError", r"the hub has no org/tiny(.|\n)*check the name"),
        ("RevisionNotFoundError", "the hub has no org/tiny"),
        ("HfHubHTTPError", "org/tiny cannot be fetched from the hub: no"),
    ],
)
def test_what_the_hub_says(offline, monkeypatch, kind, sentence):
    monkeypatch.setattr("huggingface_hub.snapshot_download", failing(kind))
    with pytest.raises(ModelError, match=sentence):
        open_checkpoint("org/tiny")
