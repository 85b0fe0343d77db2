"""The header of a GGUF file: its metadata and where its tensors lie. Knows no architecture and reads no tensor.

The reader of the `gguf` package makes an array of every string of the vocabulary and takes seconds; this one
takes its constants from there and reads the same header in a few hundredths.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC, GGMLQuantizationType, GGUFValueType

from byref.contract.errors import ModelError
from byref.loading.mapped import MappedFile

VERSIONS = (2, 3)
_MAGIC = struct.pack("<I", GGUF_MAGIC)
_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as torch counts."""
    type: GGMLQuantizationType
    offset: int
    """From the start of the file."""
    nbytes: int

    def split(self) -> Iterator[TensorInfo]:
        """One tensor for each index of the first dimension."""
        count, *shape = self.shape
        size = self.nbytes // count
        for i in range(count):
            yield TensorInfo(f"{self.name}[{i}]", tuple(shape), self.type, self.offset + i * size, size)


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What a GGUF file says of itself."""

    path: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """The file's word for it: "llama"."""
        return str(self.metadata["general.architecture"])

    @property
    def family(self) -> str:
        """The same, or "mixtral": a llama with experts."""
        experts = self.metadata.get(f"{self.architecture}.expert_count", 0)
        return "mixtral" if self.architecture == "llama" and experts else self.architecture

    def settings(self) -> dict[str, Any]:
        """The metadata under the architecture's prefix, without it."""
        prefix = f"{self.architecture}."
        return {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}

    def setting(self, key: str) -> Any:
        """One of them.

        Raises:
            ModelError: the file lacks it.
        """
        name = f"{self.architecture}.{key}"
        if name not in self.metadata:
            raise ModelError(f"the file's metadata lack {name!r}", where=self.path, hint="convert the model again")
        return self.metadata[name]


def read_header(file: MappedFile) -> GGUFHeader:
    """Read and check the header.

    Raises:
        ModelError: not a GGUF file, a version or type nobody reads, or a tensor beyond the end of the file.
    """
    path = str(file.path)
    if file.data[:4] != _MAGIC:
        raise ModelError("this is not a GGUF file", where=path, hint="a .gguf file or a Hugging Face folder")
    cursor = _Cursor(file)
    try:
        tensor_count, pairs = _counts(cursor, path)
        metadata = {cursor.string(): cursor.value() for _ in range(pairs)}
        raw = [_raw_tensor(cursor) for _ in range(tensor_count)]
    except (struct.error, EOFError, OverflowError, RecursionError) as error:
        raise _truncated(path, f"its header does not end within its {file.size:,} bytes") from error
    except ValueError as error:
        raise ModelError(f"the header cannot be read: {error}", where=path, hint="fetch or copy it again") from error
    alignment = metadata.get("general.alignment") or GGUF_DEFAULT_ALIGNMENT
    start = -(-cursor.offset // alignment) * alignment
    tensors = {tensor.name: _placed(file, start, tensor) for tensor in raw}
    _check_whole(metadata, path)
    return GGUFHeader(path, metadata, tensors)


class _Cursor:
    """Reads little-endian values one after the other."""

    def __init__(self, file: MappedFile) -> None:
        self.data, self.size, self.offset = file.data, file.size, len(_MAGIC)

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self.data, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

    def string(self) -> str:
        (length,) = self.take("Q")
        start, self.offset = self.offset, self.offset + length
        if self.offset > self.size:
            raise EOFError
        return self.data[start : self.offset].decode()

    def value(self) -> Any:
        return self._value(GGUFValueType(self.take("I")[0]))

    def _value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is not GGUFValueType.ARRAY:
            return self.take(_SCALARS[kind])[0]
        element, count = self.take("IQ")
        element = GGUFValueType(element)
        if element in _SCALARS:
            return list(self.take(f"{count}{_SCALARS[element]}"))
        return [self._value(element) for _ in range(count)]


def _counts(cursor: _Cursor, path: str) -> tuple[int, int]:
    version, tensors, pairs = cursor.take("IQQ")
    if version not in VERSIONS:
        kind = "big-endian" if version & 0xFFFF == 0 else f"of version {version}"
        raise ModelError(
            f"the GGUF file is {kind}",
            where=path,
            hint=f"a little-endian file of version {' or '.join(map(str, VERSIONS))}",
        )
    return tensors, pairs


class _Raw(NamedTuple):
    """A tensor as the header writes it."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    """From the start of the data."""


def _raw_tensor(cursor: _Cursor) -> _Raw:
    name = cursor.string()
    (dimensions,) = cursor.take("I")
    shape = cursor.take(f"{dimensions}Q")
    return _Raw(name, tuple(reversed(shape)), *cursor.take("IQ"))


def _placed(file: MappedFile, start: int, raw: _Raw) -> TensorInfo:
    """The tensor within a file whose data begin at `start`."""
    where = f"{file.path}, tensor {raw.name}"
    try:
        stored = GGMLQuantizationType(raw.kind)
    except ValueError as error:
        raise ModelError(
            f"the tensor's type {raw.kind} is unknown", where=where, hint="the same model in F16, Q8_0 or Q4_K"
        ) from error
    block, block_bytes = GGML_QUANT_SIZES[stored]
    if raw.shape and raw.shape[-1] % block:
        raise ModelError(
            f"rows of {raw.shape[-1]} values do not divide into {stored.name} blocks of {block}", where=where
        )
    info = TensorInfo(raw.name, raw.shape, stored, start + raw.offset, prod(raw.shape) // block * block_bytes)
    if info.offset + info.nbytes > file.size:
        raise _truncated(where, f"the tensor ends at byte {info.offset + info.nbytes:,} of {file.size:,}")
    return info


def _check_whole(metadata: Mapping[str, Any], path: str) -> None:
    if (parts := metadata.get("split.count", 1)) > 1:
        raise ModelError(
            f"the file is one of {parts} parts", where=path, hint="merge them with llama-gguf-split --merge"
        )
    if "general.architecture" not in metadata:
        raise ModelError("the file does not name its architecture", where=path, hint="convert the model again")


def _truncated(where: str, what: str) -> ModelError:
    return ModelError(f"the file is truncated: {what}", where=where, hint="fetch or copy it again")
