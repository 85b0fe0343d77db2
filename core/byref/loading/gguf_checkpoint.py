"""A GGUF file as a checkpoint: names, dequantisation and row order. Knows no model class."""

from __future__ import annotations

import functools
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from byref.contract.errors import ModelError
from byref.loading.checkpoint import Checkpoint, check_shape
from byref.loading.gguf_config import build_config, class_name, end_ids
from byref.loading.gguf_header import GGUFHeader, TensorInfo, read_header
from byref.loading.gguf_layout import hugging_face_tensors, layout_of
from byref.loading.gguf_rope import FACTORS, LONG_FACTORS, SHORT_FACTORS, rope_scaling
from byref.loading.mapped import MappedFile, row_chunks

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.text import Tokenizer


class GGUFCheckpoint(Checkpoint):
    """One GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        self._header = read_header(self._file)
        _check_types(self._header, path)

    @property
    def architecture(self) -> str:
        return class_name(self._header)

    @functools.cached_property
    def config(self) -> PretrainedConfig:
        return build_config(self._header, self._rope(), str(self.path))

    @property
    def end_ids(self) -> frozenset[int]:
        return end_ids(self._header)

    def tokenizer(self) -> Tokenizer:
        from byref.text.from_gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(self._header.metadata, str(self.path))

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def read(self, name: str, out: Tensor) -> None:
        info = self._info(name)
        check_shape(info.shape, out, f"{self.path}, tensor {name}")
        rows, columns = _rows(info)
        matrix, order = out.view(rows, columns), self._order(name, rows)
        shift = layout_of(self._header).norm_shift if name.endswith("norm.weight") else 0.0
        for start, stop in row_chunks(rows, columns):
            values = self._values(info, rows, start, stop)
            values = values - shift if shift else values
            if order is None:
                matrix[start:stop].copy_(values)
            else:
                matrix[order[start:stop].to(out.device)] = values.to(out)

    @functools.cached_property
    def _tensors(self) -> dict[str, TensorInfo]:
        layout = layout_of(self._header)
        return hugging_face_tensors(self._header, layout, self._blocks())

    def _blocks(self) -> int:
        blocks, tensors = self._header.setting("block_count"), len(self._header.tensors)
        if not isinstance(blocks, int) or not 0 < blocks <= tensors:
            where = f"{self.path}, field block_count"
            raise ModelError(f"{blocks} layers cannot be made of {tensors} tensors", where=where, hint="fetch it again")
        return blocks

    def _info(self, name: str) -> TensorInfo:
        if name not in self._tensors:
            raise ModelError(f"the checkpoint has no tensor {name!r}", where=str(self.path))
        return self._tensors[name]

    def _rope(self) -> dict[str, Any] | None:
        tensors = {name: self._header.tensors.get(name) for name in (FACTORS, LONG_FACTORS, SHORT_FACTORS)}
        factors = {name: self._values(info, 1, 0, 1).flatten().tolist() for name, info in tensors.items() if info}
        return rope_scaling(self._header.settings(), factors, str(self.path))

    def _order(self, name: str, rows: int) -> Tensor | None:
        """Where each stored row belongs, [rows] int64; None where rows are stored in order."""
        interleaved = layout_of(self._header).interleaved
        key = next((key for part, key in interleaved.items() if f".{part}." in name), None)
        if key is None:
            return None
        heads = self._header.setting(key)
        if not isinstance(heads, int) or heads < 1 or rows % (2 * heads):
            where = f"{self.path}, tensor {name}"
            raise ModelError(f"{rows} rows cannot belong to the {heads} heads of {key!r}", where=where)
        return _deinterleaved(rows, heads)

    def _values(self, info: TensorInfo, rows: int, start: int, stop: int) -> Tensor:
        """Stored rows [start, stop) as floats. The pages they came from are given back."""
        import torch

        stride = info.nbytes // rows
        offset, nbytes = info.offset + start * stride, (stop - start) * stride
        if dtype := _plain(info.type):
            values = self._file.values(offset, nbytes // dtype.itemsize, dtype).clone()
        else:
            blocks = np.frombuffer(self._file.data, np.uint8, nbytes, offset).reshape(stop - start, stride)
            values = torch.from_numpy(gguf.dequantize(blocks, info.type))
        self._file.release(offset, nbytes)
        return values.view(stop - start, -1)


def _check_types(header: GGUFHeader, path: Path) -> None:
    """Fail now, not in the middle of loading, on a type that cannot be turned into floats."""
    first = {info.type: info.name for info in reversed(list(header.tensors.values()))}
    for stored, name in first.items():
        if _plain(stored) is None and not _dequantizable(stored):
            raise ModelError(
                f"tensors of type {stored.name} cannot be read",
                where=f"{path}, tensor {name}",
                hint="the same model in F16, Q8_0 or Q4_K",
            )


def _dequantizable(type: Type) -> bool:
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[type][1]), np.uint8), type)
    except NotImplementedError:
        return False
    return True


def _plain(type: Type) -> torch.dtype | None:
    """The dtype of a type that is stored as it is."""
    import torch

    plain = {Type.F32: torch.float32, Type.F16: torch.float16, Type.BF16: torch.bfloat16, Type.F64: torch.float64}
    return plain.get(type)


def _rows(info: TensorInfo) -> tuple[int, int]:
    """The tensor as a matrix: its last dimension is a row; single values are where there is but one."""
    columns = info.shape[-1] if len(info.shape) > 1 or _plain(info.type) is None else 1
    return prod(info.shape) // max(1, columns), columns


def _deinterleaved(rows: int, heads: int) -> Tensor:
    """For each stored row (head, i, half) the row (head, half, i) it is."""
    import torch

    return torch.arange(rows).view(heads, 2, rows // heads // 2).transpose(1, 2).reshape(-1)
