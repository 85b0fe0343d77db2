"""What a source may be."""

import pytest

from byref.contract.errors import ModelError
from byref.loading import open_checkpoint


def test_neither_alias_nor_path(tmp_path):
    missing = str(tmp_path / "nothing.gguf")
    with pytest.raises(ModelError) as error:
        open_checkpoint(missing)
    assert f"there is no model {missing!r}" in error.value.what
    assert all(word in error.value.hint for word in ("smollm2", ".gguf", "config.json", ".safetensors"))


def test_an_alias_that_was_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("BYREF_CACHE", str(tmp_path))
    with pytest.raises(ModelError) as error:
        open_checkpoint("smollm2")
    assert error.value.hint == "byref pull smollm2"


def test_an_alias_that_was_fetched(tmp_path, monkeypatch, gguf_of):
    monkeypatch.setenv("BYREF_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    file = gguf_of().rename(tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert open_checkpoint("smollm2").path == file


def test_a_gguf_file_by_any_name(gguf_of):
    path = gguf_of(name="model.bin")
    assert open_checkpoint(str(path)).architecture == "LlamaForCausalLM"
