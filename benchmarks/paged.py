"""What paged_kv costs and gains: over transformers, over the floor of a decode step, over itself without the prefix
cache, with a long context, and in memory. Whatever is compared alternates in one run; medians.

Ends with 1 where a bound is missed, unless --report.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import floor
import peers
import torch
from common import (
    THREADS,
    Watch,
    alternating,
    arguments,
    config,
    decoding,
    drain,
    english,
    machine,
    model_or_skip,
    table,
    watched,
    write,
)
from peers import Workload
from tiny import save_tiny

from byref.config import PluginsSection
from byref.engine import Engine
from byref_paged_kv import Options, PagedKVPlugin
from byref_paged_kv.budget import page_bytes, page_tokens
from byref_paged_kv.kv import PagedKV

LONG, SHORT = 4096, 128
"""Tokens of context."""
BOUNDS: dict[str, tuple[str, float]] = {
    "W3 total over transformers": ("at least", 2.0),
    "W4 total over transformers": ("at least", 1.8),
    "W5 total over itself without prefix cache": ("at least", 4.0),
    "step over floor, 16 streams": ("at most", 3.0),
    "step over floor, 64 streams": ("at most", 3.0),
    f"step at {LONG} tokens over {SHORT}, batch 1": ("at most", 2.0),
    "memory in use over tokens and a page per sequence": ("at most", 1.04),
    "memory allocated over tokens and a page per sequence": ("at most", 1.04),
}


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    peers: tuple[Workload, ...]
    shared: Workload
    batches: tuple[int, ...]
    long: int
    steps: int
    """Decode steps of one figure."""
    repeat: int


def sizes(quick: bool, repeat: int) -> Sizes:
    """Everything, or next to nothing."""
    if quick:
        tiny = (Workload("W3", 4, 16, 8), Workload("W4", 6, 16, 8))
        return Sizes(tiny, Workload("W5", 3, 40, 4, shared=32), (1, 4), 256, 4, 1)
    chosen = {workload.name: workload for workload in peers.WORKLOADS}
    return Sizes((chosen["W3"], chosen["W4"]), chosen["W5"], (16, 64), LONG, 40, repeat)


def start(path: Path, threads: int, options: dict[str, Any] | None = None, **engine: Any) -> Engine:
    """An engine with pages, everything else as a user gets it."""
    plugins = PluginsSection.model_validate({"paged_kv": options or {}})
    settings = config(path, threads, **engine).model_copy(update={"plugins": plugins})
    return Engine.start(settings, plugins={"watch": Watch, "paged_kv": PagedKVPlugin})


def over_transformers(path: Path, threads: int, size: Sizes) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Total tokens/s of the workloads over those of `generate`."""
    peer = peers.load_peer(path)
    with start(path, threads) as engine:
        # Every run is cold: what an earlier one left would be found.
        results = [peers.measure(engine, peer, w, size.repeat, before=paged(engine).reset) for w in size.peers]
    peers.show(results)
    return {f"{one['name']} total over transformers": one["ratios"]["total"] for one in results}, results


def over_itself(path: Path, threads: int, size: Sizes) -> tuple[dict[str, float], dict[str, Any]]:
    """W5 cold, with the prefix cache and without."""
    runs: dict[str, list[float]] = {"on": [], "off": []}
    with start(path, threads) as on, start(path, threads, {"prefix_cache": False}) as off:
        engines, prompts = {"on": on, "off": off}, size.shared.prompts(on)
        for engine in engines.values():
            peers.ours(engine, prompts, min(size.shared.new, 8))
        for _, name in alternating(list(engines), size.repeat):
            paged(engines[name]).reset()
            run, _ = peers.ours(engines[name], prompts, size.shared.new)
            runs[name].append(run.total)
    medians = {name: statistics.median(totals) for name, totals in runs.items()}
    table(["prefix cache", "total tok/s"], list(medians.items()), f"{size.shared.name}, cold, medians")
    ratio = medians["on"] / medians["off"]
    return {"W5 total over itself without prefix cache": ratio}, {**asdict(size.shared), "total": runs}


def over_floor(path: Path, threads: int, size: Sizes) -> tuple[dict[str, float], list[dict[str, float]]]:
    """A decode step with pages over the floor of benchmarks/floor.py, in the same run."""
    with (
        tempfile.TemporaryDirectory() as folder,
        start(path, threads, max_context=512) as engine,
        start(save_tiny(Path(folder), floor.layers(engine)), threads) as tiny,
    ):
        floors, _ = floor.measure(engine, tiny, size.batches, size.steps)
    rows = [[f.batch, f.floor, f.measured, f.measured / f.floor] for f in floors]
    table(["streams", "floor ms", "step ms", "ratio"], rows, "one decode step")
    return {f"step over floor, {f.batch} streams": f.measured / f.floor for f in floors}, [f.figures() for f in floors]


def over_context(path: Path, threads: int, size: Sizes) -> tuple[dict[str, float], dict[str, list[float]]]:
    """A decode step of one stream with a long context over one with a short."""
    lengths = {"long": size.long, "short": SHORT}
    found: dict[str, list[float]] = {name: [] for name in lengths}
    with start(path, threads, max_context=size.long + 2 * size.steps + 64, max_requests=1) as engine:
        for _, name in alternating(list(lengths), size.repeat):
            found[name].append(floor.step_ms(engine, 1, size.steps, tokens=lengths[name]))
    medians = {name: statistics.median(steps) for name, steps in found.items()}
    table(["context", "step ms"], [[lengths[name], ms] for name, ms in medians.items()], "one stream, medians")
    return {f"step at {LONG} tokens over {SHORT}, batch 1": medians["long"] / medians["short"]}, found


def memory(path: Path, threads: int, size: Sizes) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of pages in use while streams of all lengths decode, the worst of many steps; and bytes allocated."""
    streams = 4 if size.repeat == 1 else 16
    with start(path, threads) as engine:
        sizing, page = engine.parts.sizing, page_tokens(engine.parts.sizing.pools, Options().page_size)
        each = page_bytes(sizing, page) / page
        prompts = [text[: 9 + 7 * i] for i, text in enumerate(english(engine.tokenizer, streams, 128))]
        watched(engine).clear()
        decoding(engine, prompts, 32)
        worst = 0.0
        for _ in range(32):
            tokens = sum(map(len, prompts)) + sum(report.accepted for report in watched(engine))
            worst = max(worst, engine.usage()["used_tokens"] / (tokens + streams * page))
            engine.step()
        drain(engine)
        allocated = sum(buffer.nbytes for buffer in paged(engine).buffers().values())
        room = engine.usage()["capacity_tokens"]
    ratios = {
        "memory in use over tokens and a page per sequence": worst,
        "memory allocated over tokens and a page per sequence": allocated
        / (each * (room + sizing.max_requests * page)),
    }
    return ratios, {"bytes_per_token": each, "page_tokens": page, "allocated_bytes": allocated, "tokens": room}


def paged(engine: Engine) -> PagedKV:
    """Its KV."""
    kv = engine.parts.kv
    assert isinstance(kv, PagedKV)
    return kv


def verdicts(ratios: dict[str, float]) -> list[str]:
    """Print every ratio with its bound; the names of those that miss it."""
    missed, rows = [], []
    for name, ratio in ratios.items():
        way, bound = BOUNDS.get(name, ("", 0.0))
        fits = ratio >= bound if way != "at most" else ratio <= bound
        missed += [] if fits else [name]
        rows.append([name, ratio, f"{way} {bound}" if way else "-", "yes" if fits else "no"])
    table(["ratio", "measured", "wanted", "reached"], rows, "paged_kv")
    return missed


PARTS: dict[str, Callable[[Path, int, Sizes], tuple[dict[str, float], Any]]] = {
    "transformers": over_transformers,
    "itself": over_itself,
    "floor": over_floor,
    "context": over_context,
    "memory": memory,
}


def main(arguments_given: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, help="these parts; writes no result")
    parser.add_argument("--report", action="store_true", help="end with 0 even where a bound is missed")
    args = parser.parse_args(arguments_given)
    torch.set_num_threads(args.threads)
    path, figures = model_or_skip(args.model), {"machine": machine(), "threads": args.threads or THREADS}
    ratios: dict[str, float] = {}
    details: dict[str, Any] = {}
    for name in args.only or PARTS:
        found, details[name] = PARTS[name](path, args.threads, sizes(args.quick, args.repeat))
        ratios |= found
    missed = verdicts(ratios)
    if not args.quick and not args.only:
        write("paged", {**figures, "dtype": "bfloat16", "repeat": args.repeat, "ratios": ratios, "parts": details})
    return 1 if missed and not args.report and not args.quick else 0


if __name__ == "__main__":
    sys.exit(main())
