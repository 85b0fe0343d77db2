"""CUDA graphs of forwards of fixed shape. Knows graphs and streams; nothing of models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from byref.capture.base import Body, clear_memos, refuse_uncapturable
from byref.capture.guard import PointerGuard
from byref.contract.context import ForwardContext, Kind, StateMap
from byref.plugins.binder import Bound

WARM_UPS = 2
"""Runs before a capture: libraries choose algorithms and workspaces in the first ones."""


class Graphs:
    """A `Capture` of some kinds; the others run eagerly. One memory pool serves every graph."""

    def __init__(
        self, captured: frozenset[Kind], maps: Sequence[StateMap], bound: Sequence[Bound], checked: bool
    ) -> None:
        self._captured, self._maps, self._bound, self._checked = captured, maps, bound, checked
        self._graphs: dict[tuple[int | Kind, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._guard: PointerGuard | None = None

    def begin(self) -> None:
        refuse_uncapturable(self._bound, self._captured)
        self._guard = PointerGuard(self._maps)

    def wants(self, ctx: ForwardContext) -> bool:
        return self._guard is not None and ctx.kind in self._captured and ctx.key not in self._graphs

    def record(self, ctx: ForwardContext, body: Body) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                body()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = body()
        clear_memos(ctx)
        self._graphs[ctx.key] = graph, logits

    def run(self, ctx: ForwardContext, body: Body) -> Tensor:
        if self._guard is None or ctx.kind not in self._captured:
            return body()
        if self._checked:
            self._guard.check()
        graph, logits = self._graphs[ctx.key]
        graph.replay()
        return logits
