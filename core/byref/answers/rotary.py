"""Rotary embedding in place, the table rows gathered once per forward. Knows positions, not whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from byref.contract.calls import Rotate
from byref.contract.context import ForwardContext
from byref.contract.roles import SCRATCH, Site
from byref.contract.specs import RotarySpec


def answer_rotary(spec: RotarySpec, site: Site) -> Rotate:
    """x * cos + swap(x) * sin, where swap exchanges the two halves of a pair and sin carries its sign."""
    tables = _tables(spec, site)
    dim, half = spec.dim, spec.layout == "half"
    key = repr(spec)  # a string is hashed once, not at every look-up

    def rotate(x: Tensor, positions: Tensor, ctx: ForwardContext) -> None:
        rows = ctx.state(SCRATCH).get(key, lambda: tables.rows(positions))
        part = x if x.shape[-1] == dim else x[..., :dim]
        swapped = part.roll(dim // 2, -1) if half else part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        part.mul_(rows[0]).addcmul_(swapped, rows[1])

    return rotate


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Tables:
    """cos and signed sin, [positions, 1, dim] in the engine's dtype."""

    cos: Tensor
    sin: Tensor

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Both at `positions` [rows]."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)


_SHARED: Final[WeakValueDictionary[tuple[object, ...], Tables]] = WeakValueDictionary()
"""Layers that turn alike share their tables, which are as long as the context; they go with the last of them."""


def _tables(spec: RotarySpec, site: Site) -> Tables:
    size = site.sizing
    turn = (spec.dim, spec.frequencies(size.max_context), spec.amplitude, spec.layout, spec.inverse)
    key = (*turn, size.max_context + size.max_drafts, size.device, size.dtype)
    found = _SHARED.get(key)
    if found is None:
        _SHARED[key] = found = _made(spec, site)
    return found


def _made(spec: RotarySpec, site: Site) -> Tables:
    """Computed in fp32, as transformers does."""
    positions = torch.arange(site.sizing.max_context + site.sizing.max_drafts + 1, dtype=torch.float32)
    angles = torch.outer(positions, torch.tensor(spec.frequencies(site.sizing.max_context), dtype=torch.float32))
    cos, sin = angles.cos() * spec.amplitude, angles.sin() * (-spec.amplitude if spec.inverse else spec.amplitude)
    if spec.layout == "half":
        tables = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    else:
        tables = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
    size = site.sizing
    return Tables(*(t.unsqueeze(1).to(device=size.device, dtype=size.dtype) for t in tables))
