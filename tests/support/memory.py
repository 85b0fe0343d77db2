"""Looks into the memory of a KV on slots: which slots hold something, and what happens when the others hold rubbish."""

from __future__ import annotations

import torch

from byref.engine import Engine
from byref.kv import SlotKV, SlotPool

SINK = 1e4
"""What the sink is filled with: it may hold anything finite."""


def fill_free(engine: Engine, value: float) -> None:
    """Fill every slot that holds nothing a request may read: free ones, and those reserved but not computed yet."""
    kv = engine.parts.kv
    assert isinstance(kv, SlotKV)
    for (role, _), pool in kv._pools.items():
        held = torch.zeros(pool.data.shape[0], dtype=torch.bool)
        for request in engine._planner.running:
            held[slots_in_use(pool, request.row, request.lengths.get(role, 0))] = True
        rubbish = torch.tensor(value if pool.data.dtype.is_floating_point else 100)
        pool.data[~held] = rubbish.to(pool.data.dtype)
        pool.data[0] = torch.tensor(SINK if pool.data.dtype.is_floating_point else 1).to(pool.data.dtype)


def slots_in_use(pool: SlotPool, row: int, computed: int) -> list[int]:
    """Slots of what a request has after `computed` entries."""
    geometry, at = pool.placement.geometry, pool.placement.at
    if geometry.per_request:
        return [at(row, t % geometry.versions) for t in range(max(computed - geometry.versions, 0), computed)]
    return [at(row, e) for e in range(computed // geometry.stride)]
