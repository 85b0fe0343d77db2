"""What a checkpoint offers, and which kind a source is. Knows no format: each has a module of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from byref.contract.errors import ModelError
from byref.contract.explain import nearest
from byref.loading import hub
from byref.loading.catalog import CATALOG

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.text import Tokenizer


class Checkpoint(ABC):
    """Weights, configuration and tokenizer of one model, opened but not read.

    Opening checks that every tensor lies inside its file; nothing is allocated before `read`.
    """

    path: Path

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The class name of transformers, "LlamaForCausalLM", or the file's own word where that is unknown."""

    @property
    @abstractmethod
    def config(self) -> PretrainedConfig:
        """The model's configuration.

        Raises:
            ModelError: the file's architecture or one of its settings cannot be expressed.
        """

    @property
    @abstractmethod
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a text or a turn."""

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, built on each call.

        Raises:
            ModelError: there is none, or it is of an unknown kind.
        """

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Every tensor, by its Hugging Face name."""

    def file(self, name: str) -> Path:
        """Where a tensor lies."""
        return self.path

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor as `read` fills it.

        Raises:
            ModelError: there is no such tensor.
        """

    @abstractmethod
    def read(self, name: str, out: Tensor) -> None:
        """Fill `out`, contiguous and of the shape of `name`, on any device, a few rows at a time. Its dtype is any
        floating one for floats, any other for integers and truth values.

        Raises:
            ModelError: there is no such tensor, or `out` has another shape or kind of dtype.
        """


def open_checkpoint(source: str) -> Checkpoint:
    """Open an alias ("smollm2"), a GGUF file, a Hugging Face folder with safetensors, or a hub id ("org/name").

    Raises:
        ModelError: nothing is there, or what is there is damaged or of a kind nobody knows.
    """
    path = _locate(source)
    if path.is_dir():
        from byref.loading.folder import FolderCheckpoint

        return FolderCheckpoint(path)
    from byref.loading.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(path)


def check_shape(shape: tuple[int, ...], out: Tensor, where: str) -> None:
    """Refuse to read into a tensor of another shape."""
    if tuple(out.shape) != shape:
        raise ModelError(f"the tensor has shape {list(shape)}, not {list(out.shape)}", where=where)


def _locate(source: str) -> Path:
    if entry := CATALOG.get(source):
        if not entry.path.exists():
            raise ModelError(f"the model {source!r} has not been fetched yet", hint=f"byref pull {source}")
        return entry.path
    path = Path(source).expanduser()
    if path.exists():
        return path
    if hub.is_hub_id(source):
        return hub.fetch(source)
    near = nearest(source, CATALOG)
    hint = f"an alias ({', '.join(sorted(CATALOG))}), a .gguf file, a folder with config.json and .safetensors files, "
    raise ModelError(
        f"there is no model {source!r}: it is no known alias and no path",
        hint=near if near.startswith("did you mean") else f"{hint}or a hub id (org/name)",
    )
