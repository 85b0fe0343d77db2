"""Devices, dtypes and free memory. Knows torch and the machine; nothing of models."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor

from byref.contract.context import Kind
from byref.contract.errors import ConfigError

PAGE = os.sysconf("SC_PAGE_SIZE")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str) -> torch.device:
    """The device called `name`; auto takes CUDA where it is there. Never another one silently."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "this torch sees no CUDA device", where="[model] device", hint="--device cpu, or a CUDA build of torch"
        )
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype called `name`; auto takes bfloat16 where the device multiplies in it, else float32."""
    if name != "auto":
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    fast = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def captured_kinds(capture: str, device: torch.device) -> frozenset[Kind]:
    """Kinds of forward that a capture mode captures: the tape all, CUDA graphs those of fixed shape."""
    if capture == "auto":
        capture = "cuda" if device.type == "cuda" else "off"
    if capture == "cuda" and device.type != "cuda":
        raise ConfigError("CUDA graphs need a CUDA device", where="[engine] capture", hint='capture = "off" or "tape"')
    return {"off": frozenset(), "tape": frozenset(Kind), "cuda": frozenset({Kind.DECODE, Kind.IDLE})}[capture]


def claim(buffers: Iterable[Tensor]) -> None:
    """Have the system back every page of these buffers now, and not when it is first written; they keep their values.

    A device of its own gives memory when it is allocated, a CPU when it is touched.
    """
    for buffer in buffers:
        if buffer.device.type == "cpu" and buffer.is_contiguous():
            buffer.view(-1).view(torch.uint8)[::PAGE].bitwise_or_(0)


def available_bytes(device: torch.device) -> int:
    """Memory that is free on the device now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
