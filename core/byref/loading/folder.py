"""A Hugging Face folder as a checkpoint: safetensors, sharded or not. Knows no model class."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byref.contract.errors import ModelError
from byref.loading.checkpoint import Checkpoint, check_shape
from byref.loading.mapped import MappedFile, row_chunks

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.text import Tokenizer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor in a safetensors file."""

    file: MappedFile
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


class FolderCheckpoint(Checkpoint):
    """A folder with `config.json` and safetensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = read_json(
            path / "config.json", f"the folder {path} has no config.json", "the folder that holds it"
        )
        self._tensors = _tensors(path)

    @property
    def architecture(self) -> str:
        names = self._config.get("architectures") or ()
        if not names:
            raise ModelError("config.json names no architecture", where=str(self.path), hint='"architectures": ["..."]')
        return str(names[0])

    @functools.cached_property
    def config(self) -> PretrainedConfig:
        from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

        if self._config.get("model_type") in CONFIG_MAPPING:
            try:
                return AutoConfig.from_pretrained(self.path, local_files_only=True)
            except Exception as error:  # each configuration validates in its own way
                raise ModelError(f"config.json is not valid: {error}", where=str(self.path)) from error
        # An architecture that transformers does not have: its plugin reads the fields it knows.
        return PretrainedConfig.from_dict(self._config)

    @property
    def end_ids(self) -> frozenset[int]:
        generation = self.path / "generation_config.json"
        sources = [self._config, read_json(generation) if generation.exists() else {}]
        found = [source.get("eos_token_id") for source in sources]
        lists = [value if isinstance(value, list) else [value] for value in found]
        ids = {end for ends in lists for end in ends if end is not None}
        return frozenset(ids | self.tokenizer_end_ids())

    def tokenizer_end_ids(self) -> set[int]:
        """The end token that the tokenizer's own settings name."""
        from byref.text.from_folder import end_ids

        return end_ids(self.path)

    def tokenizer(self) -> Tokenizer:
        from byref.text.from_folder import tokenizer_from_folder

        return tokenizer_from_folder(self.path)

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def file(self, name: str) -> Path:
        return self._info(name).file.path

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def read(self, name: str, out: Tensor) -> None:
        info = self._info(name)
        check_shape(info.shape, out, f"{info.file.path}, tensor {name}")
        dtype = _dtype(info, name)
        if dtype.is_floating_point != out.is_floating_point():
            where = f"{info.file.path}, tensor {name}"
            raise ModelError(f"a tensor of type {info.dtype} cannot be read as {out.dtype}", where=where)
        flat = out.view(-1)
        for start, stop in row_chunks(flat.numel(), 1):
            offset, nbytes = info.offset + start * dtype.itemsize, (stop - start) * dtype.itemsize
            flat[start:stop].copy_(info.file.values(offset, stop - start, dtype))
            info.file.release(offset, nbytes)

    def _info(self, name: str) -> _Stored:
        if name not in self._tensors:
            raise ModelError(f"the checkpoint has no tensor {name!r}", where=str(self.path))
        return self._tensors[name]


def read_json(path: Path, missing: str = "", hint: str = "") -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: there is no such file, or it holds no JSON object.
    """
    if not path.is_file():
        raise ModelError(missing or f"there is no {path.name}", where=str(path.parent), hint=hint)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path.name} is not JSON: {error}", where=str(path), hint="fetch or copy it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} holds no JSON object", where=str(path), hint="fetch or copy it again")
    return value


def _tensors(path: Path) -> dict[str, _Stored]:
    """What the index lists, or the one file holds. Other files are nobody's."""
    if (path / INDEX).is_file():
        return _indexed(path)
    if (path / SINGLE).is_file():
        return _stored(path / SINGLE)
    raise ModelError(
        f"the folder has no weights: neither {SINGLE} nor {INDEX}", where=str(path), hint="a model saved as safetensors"
    )


def _indexed(path: Path) -> dict[str, _Stored]:
    """The tensors of every shard, each in the one where the index has it."""
    places = read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise _bad_index(path, "the index names no file")
    found: dict[str, _Stored] = {}
    for file in sorted(set(places.values())):
        if not (path / file).is_file():
            raise _bad_index(path, f"the shard {file} is missing")
        for name, stored in _stored(path / file).items():
            if name in found:
                raise _bad_index(path, f"the tensor {name!r} is in two shards, {found[name].file.path.name} and {file}")
            found[name] = stored
    for name, file in places.items():
        if name not in found or found[name].file.path != path / file:
            raise _bad_index(path, f"the shard {file} lacks the tensor {name!r}, which the index says is there")
    return found


def _bad_index(path: Path, what: str) -> ModelError:
    return ModelError(what, where=str(path / INDEX), hint="fetch or copy the folder again")


def _stored(path: Path) -> dict[str, _Stored]:
    """Where the tensors of one file lie. The library checks the header, every extent included."""
    from safetensors import SafetensorError, safe_open

    file = MappedFile(path)
    try:
        with safe_open(path, "pt"):
            pass
    except SafetensorError as error:
        raise ModelError(
            f"the file is truncated or no safetensors file: {error}", where=str(path), hint="fetch or copy it again"
        ) from error
    start = 8 + int.from_bytes(file.data[:8], "little")
    header = json.loads(file.data[8:start])
    header.pop("__metadata__", None)
    return {
        name: _Stored(file, tuple(item["shape"]), item["dtype"], start + (at := item["data_offsets"])[0], at[1] - at[0])
        for name, item in header.items()
    }


def _dtype(info: _Stored, name: str) -> torch.dtype:
    import torch

    dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    dtypes |= {"I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool}
    if info.dtype not in dtypes:
        where = f"{info.file.path}, tensor {name}"
        raise ModelError(
            f"tensors of type {info.dtype} cannot be read", where=where, hint=f"one of {', '.join(dtypes)}"
        )
    return dtypes[info.dtype]
