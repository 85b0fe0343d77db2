"""Parameters of one model, read once each into their final place. Knows a checkpoint, not its format."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from byref.contract.errors import ModelError
from byref.loading.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class ParameterReader:
    """Answers `byref.contract.roles.Parameters` from a checkpoint.

    Args:
        checkpoint: where tensors come from.
        dtype: what every tensor is cast to.
        device: where every tensor is put.
        renames: see `byref.contract.model.Model`.

    Raises:
        ModelError: two tensors get the same name.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        renames: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._checkpoint, self._dtype, self._device = checkpoint, dtype, device
        self._stored: dict[str, str] = {}
        """By the model's name, the checkpoint's own."""
        patterns = [(re.compile(pattern), new) for pattern, new in renames]
        for own in checkpoint.names():
            name = _renamed(own, patterns)
            if name in self._stored:
                raise ModelError(f"both {self._stored[name]!r} and {own!r} are {name!r}", where=str(checkpoint.path))
            self._stored[name] = own
        self._names = frozenset(self._stored)
        self._claimed: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the checkpoint carries it."""
        return name in self._names

    def load(self, names: Sequence[str], shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """The tensors stacked along their first dimension: `shape`, in the engine's dtype or `dtype`, on its device.

        Raises:
            ModelError: a tensor is missing, or the shapes do not add up; file and tensor are named.
        """
        import torch

        rows = self._rows(names, tuple(shape))
        out = torch.empty(tuple(shape), dtype=dtype or self._dtype, device=self._device)
        for name, part in zip(names, torch.split(out, rows) if rows else [out], strict=True):
            self._checkpoint.read(self._stored[name], part)
        self._claimed.update(names)
        return out

    def unclaimed(self) -> tuple[str, ...]:
        """Names nobody has read, in order."""
        return tuple(sorted(self._names - self._claimed))

    def _rows(self, names: Sequence[str], shape: tuple[int, ...]) -> list[int]:
        """Rows of each part; none where the tensor is a single value."""
        for name in names:
            self._check_present(name)
        parts = [self._checkpoint.shape(self._stored[name]) for name in names]
        rows = [part[0] for part in parts if part]
        alike = all(len(part) == len(shape) and part[1:] == shape[1:] for part in parts)
        if not parts or not alike or (shape and sum(rows) != shape[0]):
            found = ", ".join(f"{name} {list(part)}" for name, part in zip(names, parts, strict=True)) or "nothing"
            files = dict.fromkeys(str(self._checkpoint.file(name)) for name in names)
            where = ", ".join(files) or str(self._checkpoint.path)
            raise ModelError(f"the model wants {list(shape)}, the file has {found}", where=where)
        return rows

    def _check_present(self, name: str) -> None:
        if name not in self._names:
            near = difflib.get_close_matches(name, self._names, n=3)
            raise ModelError(
                f"the checkpoint has no tensor {name!r}",
                where=str(self._checkpoint.path),
                hint=f"the nearest are {', '.join(near)}" if near else "a checkpoint of this architecture",
            )


def _renamed(name: str, patterns: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, new in patterns:
        name = pattern.sub(new, name)
    return name
