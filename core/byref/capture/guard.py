"""Notices a persistent buffer that moved. Knows states and addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from byref.contract.context import StateMap
from byref.contract.errors import CaptureError

Address = tuple[int, tuple[int, ...], tuple[int, ...]]


class PointerGuard:
    """Addresses of every buffer that states list, taken once and compared before a replay."""

    def __init__(self, maps: Sequence[StateMap]) -> None:
        self._maps = maps
        self._taken = self._addresses()

    def check(self) -> None:
        """Raise a CaptureError that names a buffer which moved, appeared or went away."""
        now = self._addresses()
        if now == self._taken:
            return
        changed = sorted(name for name in now.keys() | self._taken.keys() if now.get(name) != self._taken.get(name))
        raise CaptureError(
            f"a persistent buffer moved after capture: {', '.join(changed)}",
            hint="allocate it once in create_states and refill it in place",
        )

    def _addresses(self) -> Mapping[str, Address]:
        return {
            f"{states.role}/{state.key.name}/{name}": _address(tensor)
            for states in self._maps
            for state in states.values()
            for name, tensor in state.buffers().items()
        }


def _address(tensor: Tensor) -> Address:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())
