"""The rows of a forward as persistent buffers. Knows windows and layouts; must not know what is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.errors import CaptureError
from byref.contract.roles import Batch, Sizing
from byref.contract.step import Window
from byref.engine.layout import Layout, bucket, most_rows

IDS, POSITIONS, INDEX, REQUEST, ROWS, FRONTIER, ANCESTORS, FROM_ROW, WANTED = range(9)
REQUEST_ROWS, OFFSETS, LENGTHS, STARTS = range(4)
NAMES: Final = ("ids", "positions", "index", "request", "rows", "frontier", "ancestors", "from_row", "wanted")


class RowBatch(Batch):
    """Core's `Batch`: two int64 tables, one by row and one by request, staged on the host and copied whole.

    On a CPU the staged table is the table; elsewhere it is pinned and copied without waiting.
    """

    def __init__(self, sizing: Sizing) -> None:
        most = most_rows(sizing.max_rows, sizing.max_requests, sizing.max_drafts)
        self._staged = [_staging(len(NAMES), most, sizing), _staging(4, bucket(sizing.max_requests + 1) + 1, sizing)]
        self._host = [tensor.numpy() for tensor in self._staged]
        on_cpu = sizing.device.type == "cpu"
        self._tables = self._staged if on_cpu else [tensor.to(sizing.device) for tensor in self._staged]
        self._windows: tuple[Window, ...] = ()
        self._recording = False

    def buffers(self) -> Mapping[str, Tensor]:
        return {"rows": self._tables[0], "requests": self._tables[1]}

    def fill(self, windows: Sequence[Window], layout: Layout, placed: Mapping[str, int]) -> list[int]:
        """Stage the windows, padding scrubbed, and return which logit rows the windows want, in order.

        `placed` has the first row of each request in the forward before, which `from_rows` count from.
        """
        self._windows = tuple(windows)
        rows, requests = self._host
        rows[:, : layout.rows] = 0
        rows[FRONTIER, : layout.rows] = 1
        rows[REQUEST, : layout.rows] = layout.requests - 1
        requests[:, : layout.requests] = 0
        live = sum(len(window.tokens) for window in windows)
        requests[STARTS, : layout.requests] = live
        requests[STARTS, layout.requests] = layout.rows
        wanted: list[int] = []
        for i, (window, row) in enumerate(zip(windows, layout.place(windows).values(), strict=True)):
            self._fill_request(i, row, window)
            if window.from_rows:
                before = np.array(window.from_rows) + placed[window.request]
                rows[FROM_ROW, row : row + len(window.tokens)] = before
            wanted.extend(row + j for j in window.wanted_rows())
        if layout.rows_per_request:
            width = layout.rows_per_request
            requests[STARTS, : layout.requests + 1] = np.arange(layout.requests + 1) * width
            rows[REQUEST, : layout.rows] = np.arange(layout.rows) // width
        picked = self._fill_wanted(wanted, layout)
        for staged, table in zip(self._staged, self._tables, strict=True):
            if staged is not table:
                table.copy_(staged, non_blocking=True)
        return picked

    def _fill_request(self, i: int, row: int, window: Window) -> None:
        rows, requests = self._host
        n = len(window.tokens)
        at = slice(row, row + n)
        index = np.arange(window.start, window.end)
        rows[IDS, at] = window.tokens
        rows[INDEX, at] = rows[POSITIONS, at] = index
        rows[REQUEST, at], rows[ROWS, at] = i, window.row
        rows[FRONTIER, at] = index + 1
        if window.is_tree:
            self._fill_tree(row, window)
        requests[REQUEST_ROWS, i], requests[STARTS, i] = window.row, row
        requests[OFFSETS, i], requests[LENGTHS, i] = window.start, window.end

    def _fill_tree(self, row: int, window: Window) -> None:
        """Drafts see everything before the first draft, and of the drafts their ancestors and themselves."""
        rows, known = self._host[0], window.known
        bits = [0] * window.drafts
        for draft in range(window.drafts):
            parent = window.parents[draft]
            bits[draft] = 1 << draft | (bits[parent - known] if parent >= known else 0)
            of_parent = window.start + parent if parent < known else int(rows[POSITIONS, row + parent])
            rows[POSITIONS, row + known + draft] = of_parent + 1
        at = slice(row + known, row + known + window.drafts)
        rows[FRONTIER, at] = window.start + known
        rows[ANCESTORS, at] = bits

    def _fill_wanted(self, wanted: list[int], layout: Layout) -> list[int]:
        """Where the forward computes every row, rows are picked from its logits; else before them."""
        table = self._host[0][WANTED]
        table[: layout.logit_rows] = 0
        if layout.logit_rows == layout.rows:
            return wanted
        table[: len(wanted)] = wanted
        return list(range(len(wanted)))

    def record(self, recording: bool) -> None:
        """Whether a capture is being recorded: host rows are then out of reach."""
        self._recording = recording

    def host(self) -> tuple[Window, ...]:
        if self._recording:
            raise CaptureError(
                "host rows are read inside a forward that is captured",
                hint="set `capturable = False` on the callable, or use the device rows of the batch",
            )
        return self._windows

    def ids(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][IDS, : ctx.rows]

    def positions(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][POSITIONS, : ctx.rows]

    def index(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][INDEX, : ctx.rows]

    def request_of_row(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][REQUEST, : ctx.rows]

    def rows(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][ROWS, : ctx.rows]

    def frontier(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][FRONTIER, : ctx.rows]

    def ancestors(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][ANCESTORS, : ctx.rows]

    def from_row(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][FROM_ROW, : ctx.rows]

    def wanted(self, ctx: ForwardContext) -> Tensor:
        return self._tables[0][WANTED, : ctx.logit_rows]

    def request_rows(self, ctx: ForwardContext) -> Tensor:
        return self._tables[1][REQUEST_ROWS, : ctx.requests]

    def offsets(self, ctx: ForwardContext) -> Tensor:
        return self._tables[1][OFFSETS, : ctx.requests]

    def lengths(self, ctx: ForwardContext) -> Tensor:
        return self._tables[1][LENGTHS, : ctx.requests]

    def starts(self, ctx: ForwardContext) -> Tensor:
        return self._tables[1][STARTS, : ctx.requests + 1]


def _staging(fields: int, width: int, sizing: Sizing) -> Tensor:
    return torch.zeros(fields, width, dtype=torch.int64, pin_memory=sizing.device.type == "cuda")
