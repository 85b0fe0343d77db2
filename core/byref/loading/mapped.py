"""A file mapped into memory whose pages are given back once read. Knows no format."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from byref.contract.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK = 1 << 19
"""Values converted at a time: what a conversion holds beside its result stays in the low megabytes."""


class MappedFile:
    """A read-only view of a whole file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        if not self.size:
            raise ModelError("the file is empty", where=str(path), hint="fetch or copy it again")
        with path.open("rb") as file:
            # Copy-on-write: torch wants a writable buffer. Nothing is ever written, so nothing is copied.
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def values(self, offset: int, count: int, dtype: torch.dtype) -> Tensor:
        """[count] of `dtype` from byte `offset` on, lent until `release`."""
        import torch

        return torch.frombuffer(self.data, dtype=dtype, count=count, offset=offset)

    def release(self, offset: int, nbytes: int) -> None:
        """Give the pages wholly inside the range back to the system; a later look reads them again."""
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, start, end - start)


def row_chunks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of rows with about `CHUNK` values each."""
    step = max(1, CHUNK // max(1, columns))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
