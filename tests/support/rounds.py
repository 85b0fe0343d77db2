"""A plugin that notes every forward of a round of drafting, as its rows are described to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from byref.contract import API_VERSION, Plugin, PluginInfo, Window, hookimpl
from byref.contract.roles import BATCH, TARGET


@dataclass(frozen=True, slots=True)
class Seen:
    """One forward, as its rows are described to it."""

    role: str
    draft_step: int
    rows: int
    windows: tuple[Window, ...]
    starts: list[int]
    offsets: list[int]
    lengths: list[int]
    index: list[int]
    frontier: list[int]
    from_row: list[int]
    slots: list[int]
    """Where each row's entry lies."""
    pointers: tuple[int, ...]


class Rows(Plugin):
    """Notes every forward, and what drafting does to the lengths of the target."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.seen: list[Seen] = []

    @hookimpl
    def bind(self, spec, site):
        self.kv = site.kv

    @hookimpl
    def prepare_step(self, step):
        """What the step before left: a round of draft forwards touches no length of the target."""
        for window in step.plan.windows:
            assert step.requests[window.request].lengths[TARGET] == window.start

    @hookimpl(trylast=True)
    def prepare_forward(self, ctx):
        batch, role = ctx.state(BATCH), ctx.states.role
        if batch._recording:
            return
        pool = next(pool for (owner, _), pool in self.kv._pools.items() if owner == role)
        fields = [batch.index(ctx), batch.frontier(ctx), batch.from_row(ctx)]
        slots = pool.placement.place(batch.rows(ctx), batch.index(ctx))
        owned = (batch.offsets(ctx), batch.lengths(ctx), *fields)
        self.seen.append(
            Seen(
                role,
                ctx.draft_step,
                ctx.rows,
                batch.host(),
                batch.starts(ctx).tolist(),
                batch.offsets(ctx).tolist(),
                batch.lengths(ctx).tolist(),
                *(field.tolist() for field in fields),
                torch.where(batch.rows(ctx) > 0, slots, 0).tolist(),
                tuple(tensor.data_ptr() for tensor in owned),
            )
        )
