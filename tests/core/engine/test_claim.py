"""Claiming buffers puts them into memory, whatever they hold, and changes nothing."""

import os
from pathlib import Path

import torch

from byref.engine.device import claim

SIZE = 96 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_untouched_pages_come_into_memory():
    before = resident()
    buffer = torch.empty(SIZE, dtype=torch.uint8)
    assert resident() - before < SIZE / 2
    claim([buffer])
    assert resident() - before > 0.9 * SIZE


def test_values_stay():
    torch.manual_seed(0)
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn, torch.bool)
    buffers = [torch.randn(3000, 7).to(dtype) for dtype in dtypes]
    buffers += [torch.tensor(float("nan")), torch.empty(0, 3), torch.randn(2000, 8)[:, ::2]]
    before = [buffer.clone() for buffer in buffers]
    claim(buffers)
    for buffer, was in zip(buffers, before, strict=True):
        assert torch.equal(buffer.contiguous().view(-1).view(torch.uint8), was.contiguous().view(-1).view(torch.uint8))
