"""Answers compressors: folds the rows of a window into one entry when a row closes it. Knows pools; scores nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from byref.contract.calls import Compress
from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH, Pool, Site
from byref.contract.sparse import CompressSpec
from byref_dsa.layout import raw_pool
from byref_dsa.states import SlotMappings


@dataclass(frozen=True, slots=True)
class Closings:
    """The entries that a forward closes, padded to as many as it could."""

    rows: Tensor
    """[n]: the row that closes each; one behind the last row for padding."""
    positions: Tensor
    """[n]: position of the window's first token."""
    slots: Tensor
    """[n, rows of the window]: where their raw rows lie."""
    there: Tensor
    """[n, rows of the window] bool: False before the first token."""


class Compressor:
    """Keeps every row as long as its windows are open, and writes what closes.

    The entry is a function of its window's rows alone, which the pool keeps across chunks, preemption and rejected
    drafts: nothing is accumulated, so nothing has to be undone.
    """

    about: ClassVar[str] = "torch: one entry per window, when a row closes it"

    def __init__(self, spec: CompressSpec, raw: Pool, entries: Pool, site: Site) -> None:
        self._spec, self._raw, self._entries = spec, raw, entries
        bias = site.parameters.load([spec.bias], (spec.ratio, spec.raw_width), torch.float32)
        self._bias = torch.cat(bias.split(spec.width, 1)) if spec.overlap else bias
        self._norm = site.resolve(spec.norm)
        # Under a name of its own: its positions are not the rows'.
        self._rotate = site.resolve(replace(spec.rotary, name=f"{spec.rotary.name}.every{spec.ratio}"))

    def __call__(self, kv: Tensor, gate: Tensor, ctx: ForwardContext) -> None:
        self._raw.write(ctx, torch.cat((kv, gate), 1))
        key = ("closings", self._raw.space, self._spec.ratio)
        closings = ctx.state(SlotMappings.key).get(key, lambda: self._closings(ctx))
        values = self._norm(self._fold(closings))
        self._rotate(values[:, None, -self._spec.rotary.dim :], closings.positions, ctx)
        by_row = values.new_zeros(ctx.rows + 1, self._spec.width).index_copy_(0, closings.rows, values)
        self._entries.write(ctx, by_row[: ctx.rows])

    def _fold(self, closings: Closings) -> Tensor:
        """[n, width]."""
        spec = self._spec
        kv, gate = self._raw.read(closings.slots).chunk(2, -1)
        if spec.overlap:
            kv, gate = _overlapping(kv, spec), _overlapping(gate, spec)
        gate = (gate.float() + self._bias).masked_fill(~closings.there[..., None], float("-inf"))
        kv = kv.masked_fill(~closings.there[..., None], 0.0)
        return (kv * gate.softmax(1).to(kv.dtype)).sum(1)

    def _closings(self, ctx: ForwardContext) -> Closings:
        spec, batch = self._spec, ctx.state(BATCH)
        offsets, starts = batch.offsets(ctx), batch.starts(ctx)[:-1]
        first = offsets // spec.ratio
        ends = (batch.lengths(ctx) // spec.ratio - first).clamp(min=0).cumsum(0)
        number = torch.arange(ctx.rows // spec.ratio + ctx.requests, device=ends.device)
        request = torch.searchsorted(ends, number, right=True).clamp(max=ctx.requests - 1)
        before = torch.where(request > 0, ends[request - 1], 0)
        there = number < ends[-1]
        entry = torch.where(there, first[request] + number - before, 0)
        row = starts[request] + (entry + 1) * spec.ratio - 1 - offsets[request]
        reach = 2 * spec.ratio if spec.overlap else spec.ratio
        index = (entry[:, None] + 1) * spec.ratio + torch.arange(-reach, 0, device=ends.device)
        of_request = torch.where(there, batch.request_rows(ctx)[request], 0)
        slots = self._raw.slots(of_request[:, None], index.clamp(min=0))
        return Closings(torch.where(there, row, ctx.rows), entry * spec.ratio, slots, index >= 0)


def _overlapping(raw: Tensor, spec: CompressSpec) -> Tensor:
    """Of the window before the first halves, of the window itself the second ones: [n, 2 * ratio, width]."""
    return torch.cat((raw[:, : spec.ratio, : spec.width], raw[:, spec.ratio :, spec.width :]), 1)


def answer_compress(spec: CompressSpec, site: Site) -> Compress:
    """The compressor of one layer."""
    raw, entries = site.kv.pool(spec.role, raw_pool(spec)), site.kv.pool(spec.role, spec.pool_name)
    return Compressor(spec, raw, entries, site)
