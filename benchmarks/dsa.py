"""What one layer's sparse attention costs in a decode step, as the context grows: it reads 512 entries, however many.

Latent attention with DeepSeek-V3.2's heads and widths on the default KV: one request, the cache filled with random
entries. Beside the sparse attention stand the indexer, which scores every key, and dense attention over the same cache.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from common import THREADS, machine, picture, table, write
from torch import Tensor

from byref.answers.attention import PoolAttention
from byref.capture.base import Eager
from byref.contract import ForwardContext, Request, SamplingParams, StateMap, Window
from byref.contract.roles import TARGET, RoleSizing, Scratch, Site, Sizing
from byref.contract.sparse import IndexSpec
from byref.contract.specs import AttentionSpec, PoolSpec, SelectionSpec
from byref.engine.batch import RowBatch
from byref.engine.forwards import Forwards, Unit
from byref.kv import ContiguousKV
from byref_dsa import Options
from byref_dsa.attention import GatheredAttention
from byref_dsa.indexing import answer_index
from byref_dsa.layout import Layout
from byref_dsa.states import SlotMappings, TopKShare

CONTEXTS = (2048, 4096, 8192, 16384, 32768)
TOP_K = 512
HEADS, LATENT, TURNED = 128, 512, 64
INDEX_HEADS, INDEX_DIM = 64, 128
BOUND = 1.3
"""Attention at the longest context may cost so many times that at the shortest."""


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one layer in one decode step."""

    context: int
    attention: float
    indexer: float
    dense: float

    @property
    def sparse(self) -> float:
        """Attention and its indexer."""
        return self.attention + self.indexer


class Layer:
    """A model of one layer that only attends, and says how long each part took."""

    vocabulary, input_width = 1, 0
    optional: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()

    def __init__(self, site: Site, attention: AttentionSpec, indexer: IndexSpec, layout: Layout) -> None:
        own = site.kv.pool(TARGET, attention.pool_name)
        self._select = answer_index(indexer, site, layout, Options(kernels="torch"))
        self._sparse = GatheredAttention(attention, own, None, site)
        self._dense = PoolAttention(attention, own, frozenset(), None)
        self.seconds: dict[str, float] = {}

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        rows = ctx.rows
        q, kv = torch.randn(rows, HEADS, LATENT + TURNED), torch.randn(rows, LATENT + TURNED)
        index_q, key = torch.randn(rows, INDEX_HEADS, INDEX_DIM), torch.randn(rows, INDEX_DIM)
        weights = torch.randn(rows, INDEX_HEADS)
        self._time("indexer", lambda: self._select(index_q, key, weights, ctx))
        self._time("attention", lambda: self._sparse(q, kv, ctx))
        self._time("dense", lambda: self._dense(q, kv, ctx))
        return torch.zeros(ctx.logit_rows, 1)

    def _time(self, name: str, call: Callable[[], Any]) -> None:
        began = time.perf_counter()
        call()
        self.seconds[name] = time.perf_counter() - began


def specs() -> tuple[AttentionSpec, IndexSpec]:
    """The layer's."""
    attention = AttentionSpec(
        name="a",
        layer=0,
        heads=HEADS,
        kv_heads=1,
        key_dim=LATENT + TURNED,
        value_dim=LATENT,
        scale=(128 + TURNED) ** -0.5,
        form="mla",
        selection=SelectionSpec(source=0, top_k=TOP_K),
    )
    return attention, IndexSpec(name="i", layer=0, heads=INDEX_HEADS, dim=INDEX_DIM, top_k=TOP_K)


def build(context: int) -> tuple[Layer, Forwards]:
    """A layer whose cache holds `context` random entries of one request."""
    attention, indexer = specs()
    pool = PoolSpec(name=attention.pool_name, width=attention.entry_width, dtype=torch.float32)
    layout = Layout.of([attention, indexer, pool], "auto")
    sizing = Sizing(
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_requests=1,
        max_rows=8,
        max_context=context,
        max_drafts=0,
        kv_tokens=context,
        captured=frozenset(),
        roles=(RoleSizing(TARGET, 0, 1, 0),),
        pools=(pool, *layout.pools),
    )
    kv = ContiguousKV(sizing)
    params = SamplingParams(max_tokens=1)
    request = Request("r", (1,) * (context - 1), params, 0, row=1, tokens=[1] * context, lengths={TARGET: context - 1})
    assert kv.reserve(request, 1)
    for name in (pool.name, layout.pools[0].name):
        kv.pool(TARGET, name).data.normal_()
    layer = Layer(Site(sizing, kv, None, lambda spec: spec), attention, indexer, layout)  # type: ignore[arg-type]
    states, batch = StateMap(TARGET), RowBatch(sizing)
    for state in (batch, Scratch(), kv, SlotMappings(), TopKShare(TARGET, TOP_K, sizing)):
        states.attach(state, "benchmark")
    states.seal()
    return layer, Forwards([Unit(TARGET, 0, layer, batch, states, None)], kv.refill, Eager(), sizing)


def measure(contexts: Sequence[int], repeat: int) -> list[Cost]:
    """Every context in turn, again and again, so that a busy moment is nobody's alone; medians."""
    built = {context: build(context) for context in contexts}
    times: dict[int, list[dict[str, float]]] = {context: [] for context in contexts}
    for turn in range(repeat + 2):
        for context, (layer, forwards) in built.items():
            forwards(TARGET, [Window("r", 1, TARGET, context - 1, (1,))])
            if turn >= 2:
                times[context].append(dict(layer.seconds))
    return [
        Cost(context, **{part: statistics.median(one[part] for one in found) * 1e3 for part in found[0]})
        for context, found in times.items()
    ]


def draw(costs: list[Cost]) -> None:
    with picture("dsa", 2) as figure:
        alone, whole = figure.axes
        at = [cost.context for cost in costs]
        alone.plot(at, [cost.attention for cost in costs], "o-", label=f"sparse, {TOP_K} entries")
        alone.plot(at, [cost.dense for cost in costs], "s--", label="dense")
        alone.set_title("attention of one layer, ms")
        whole.plot(at, [cost.sparse for cost in costs], "o-", label="sparse with its indexer")
        whole.plot(at, [cost.indexer for cost in costs], "^:", label="indexer alone")
        whole.plot(at, [cost.dense for cost in costs], "s--", label="dense")
        whole.set_title("with the indexer, ms")
        for axis in figure.axes:
            axis.set_xlabel("cached tokens")
            axis.set_xscale("log", base=2)
            axis.set_ylim(bottom=0)
            axis.legend()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--repeat", type=int, default=40, help="decode steps at each context; medians are reported")
    parser.add_argument("--quick", action="store_true", help="two short contexts; writes no result")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    contexts = CONTEXTS[:2] if args.quick else CONTEXTS
    costs = measure(contexts, 3 if args.quick else args.repeat)
    head = ["cached tokens", "attention ms", "indexer ms", "both ms", "dense ms"]
    rows = [[cost.context, cost.attention, cost.indexer, cost.sparse, cost.dense] for cost in costs]
    ratio = costs[-1].attention / costs[0].attention
    table(head, rows, f"one layer in a decode step, k = {TOP_K}: attention grows {ratio:.2f} times")
    if not args.quick:
        figures = {"machine": machine(), "threads": args.threads, "top_k": TOP_K, "ratio": ratio, "bound": BOUND}
        write("dsa", {**figures, "costs": [{**asdict(cost), "sparse": cost.sparse} for cost in costs]})
        draw(costs)
    return 0 if args.quick or ratio <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
