"""Strangers' distributions, built outside the tree and installed into folders of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "strangers"


def install(name: str, folder: Path) -> Path:
    """Build `strangers/<name>` in `folder` and pip-install it there; the folder it was installed into."""
    source, target = folder / "source", folder / "site"
    shutil.copytree(SOURCES / name, source, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*command, "--no-deps", "--no-build-isolation", f"--target={target}", str(source)], check=True)
    return target


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("good", tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("broken", tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="session")
def rival(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("rival", tmp_path_factory.mktemp("rival"))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch):
    """Makes installed folders visible in this process, for one test."""

    def add(*folders: Path) -> None:
        for folder in folders:
            monkeypatch.syspath_prepend(folder)

    yield add
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("stranger_")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers over single bytes, as transformers saves it."""
    import tokenizers
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "model"
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": len(letters)}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, eos_token_id=None, bos_token_id=None)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
