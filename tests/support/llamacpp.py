"""llama.cpp as an oracle: its logits, tokenizer and quantiser, through the shared object that the package `xllamacpp` carries.

The package's Python face gives no logits of a prompt, so its C functions are called. A few members of one C struct are
set by their offset, which is a version's own: their defaults are checked before.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path

import numpy as np
import torch  # before the shared object: both use the OpenMP runtime, and torch brings one along
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

ROWS = 256
"""A forward computes so many rows."""
_ERROR = 4
"""The log level."""


class _Params(ctypes.Structure):
    """The parameters of a model or of a context, in words; longer than either, and passed in memory."""

    _fields_ = (("words", c_uint32 * 256),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    )


_AUTO = 2**32 - 1
_CONTEXT = {  # member of llama_context_params: (word, default)
    "n_ctx": (0, 512),
    "n_batch": (1, 2048),
    "n_ubatch": (2, 512),
    "flash_attn_type": (13, _AUTO),
    "type_k": (26, GGMLQuantizationType.F16),
    "type_v": (27, GGMLQuantizationType.F16),
}
_EXACT = {"flash_attn_type": 0, "type_k": GGMLQuantizationType.F32, "type_v": GGMLQuantizationType.F32}
"""No fp16 in the attention."""
_Log = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
_FUNCTIONS = {
    "ggml_quantize_chunk": (c_size_t, c_int, POINTER(c_float), c_void_p, c_int64, c_int64, c_int64, c_void_p),
    "llama_context_default_params": (_Params,),
    "llama_decode": (c_int32, c_void_p, _Batch),
    "llama_free": (None, c_void_p),
    "llama_get_logits": (POINTER(c_float), c_void_p),
    "llama_init_from_model": (c_void_p, c_void_p, _Params),
    "llama_log_set": (None, _Log, c_void_p),
    "llama_model_default_params": (_Params,),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_load_from_file": (c_void_p, c_char_p, _Params),
    "llama_set_n_threads": (None, c_void_p, c_int32, c_int32),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
}


def _open() -> ctypes.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise ImportError("llama.cpp comes with the package xllamacpp: pip install -c constraints.txt -e .[dev]")
    library = ctypes.CDLL(str(next(Path(spec.origin).parent.glob("xllamacpp*.so"))))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@_Log
def _log(level: int, text: bytes, _: int | None) -> None:
    if level == _ERROR:
        sys.stderr.write(text.decode(errors="replace"))


_LIB = _open()
_LIB.llama_log_set(_log, None)


def logits(path: Path, ids: Sequence[int], *, exact: bool = True) -> Iterator[torch.Tensor]:
    """The logits after each token of one text, [rows, vocabulary] fp32, some rows at a time.

    Args:
        path: a GGUF file.
        ids: the text.
        exact: keep keys and values in fp32, and no flash attention; otherwise as llama.cpp runs unless told.
    """
    with _loaded(path) as model:
        context = _LIB.llama_init_from_model(model, _context_params(len(ids), _EXACT if exact else {}))
        assert context, "llama.cpp makes no context"
        try:
            _LIB.llama_set_n_threads(context, torch.get_num_threads(), torch.get_num_threads())
            vocabulary = _LIB.llama_vocab_n_tokens(_LIB.llama_model_get_vocab(model))
            for first in range(0, len(ids), ROWS):
                yield _forward(context, ids[first : first + ROWS], vocabulary)
        finally:
            _LIB.llama_free(context)


def tokenize(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of each text, with what the file wants around it, and special tokens where it names them."""
    with _loaded(path) as model:
        vocabulary, found = _LIB.llama_model_get_vocab(model), []
        for text in map(str.encode, texts):
            ids = (c_int32 * (len(text) + 8))()
            count = _LIB.llama_tokenize(vocabulary, text, len(text), ids, len(ids), True, True)
            assert count >= 0
            found.append(ids[:count])
        return found


def perplexity(path: Path, ids: Sequence[int]) -> float:
    """exp of the mean negative log-probability of every token but the first."""
    rows = (part.double().log_softmax(-1) for part in logits(path, ids, exact=False))
    chosen, at = [], 0
    for part in rows:
        following = torch.tensor(ids[at + 1 : at + 1 + len(part)])
        chosen.append(part[: len(following)].gather(1, following[:, None]))
        at += len(part)
    return math.exp(-float(torch.cat(chosen).mean()))


def quantize(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Values [..., columns] fp32 in a quantised type, [..., bytes of a row] uint8."""
    values = np.ascontiguousarray(values, np.float32)
    block, size = GGML_QUANT_SIZES[kind]
    rows, columns = values.size // values.shape[-1], values.shape[-1]
    assert columns % block == 0, f"rows of {columns} values are no whole {kind.name} blocks of {block}"
    out = np.empty((*values.shape[:-1], columns // block * size), np.uint8)
    written = _LIB.ggml_quantize_chunk(
        kind, values.ctypes.data_as(POINTER(c_float)), out.ctypes.data, 0, rows, columns, None
    )
    assert written == out.nbytes
    return out


@contextmanager
def _loaded(path: Path) -> Iterator[int]:
    model = _LIB.llama_model_load_from_file(str(path).encode(), _LIB.llama_model_default_params())
    assert model, f"llama.cpp cannot load {path}"
    try:
        yield model
    finally:
        _LIB.llama_model_free(model)


def _context_params(tokens: int, changes: dict[str, int]) -> _Params:
    params = _LIB.llama_context_default_params()
    for name, (word, default) in _CONTEXT.items():
        assert params.words[word] == default, f"llama_context_params has no {name} at word {word}: another version"
    for name, value in {"n_ctx": tokens, "n_batch": ROWS, "n_ubatch": ROWS, **changes}.items():
        params.words[_CONTEXT[name][0]] = value
    return params


def _forward(context: int, ids: Sequence[int], vocabulary: int) -> torch.Tensor:
    tokens, wanted = (c_int32 * len(ids))(*ids), (c_int8 * len(ids))(*[1] * len(ids))
    batch = _Batch(n_tokens=len(ids), token=tokens, logits=ctypes.addressof(wanted))
    status = _LIB.llama_decode(context, batch)
    assert status == 0, f"llama_decode: {status}"
    found = np.ctypeslib.as_array(_LIB.llama_get_logits(context), (len(ids), vocabulary))
    return torch.from_numpy(found.copy())
