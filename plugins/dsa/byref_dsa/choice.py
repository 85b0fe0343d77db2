"""Whether Triton kernels compute a layer: settled once, at bind. Knows devices and pools; launches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

import torch

from byref.contract.errors import ConfigError
from byref.contract.roles import Pool

WHERE = "[plugins.dsa] kernels"


def chooses_triton(
    choice: Literal["auto", "torch", "triton"], device: torch.device, pools: Sequence[Pool | None]
) -> bool:
    """Whether kernels read the pools; `auto` takes them where they work.

    Raises:
        ConfigError: they were asked for and do not work here, and why.
    """
    if choice == "torch":
        return False
    obstacle = _obstacle(device, pools)
    if choice == "triton" and obstacle:
        what = f"kernels = 'triton' does not work here: {obstacle}"
        raise ConfigError(what, where=WHERE, hint='"auto" takes what works')
    return obstacle is None


def _obstacle(device: torch.device, pools: Sequence[Pool | None]) -> str | None:
    if device.type != "cuda":
        return f"the device is {device.type}, and they need CUDA"
    if find_spec("triton") is None:
        return "triton is not installed"
    return "a pool has a codec" if any(pool and pool.spec.codec for pool in pools) else None
