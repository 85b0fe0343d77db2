"""What a decode step cannot go below on this machine, per batch size, and the best attainable tokens/s.

Three parts: the model's own packed projections alone; the cache's bytes over the measured memory bandwidth; Python
and dispatch, which is a step of a model with as many layers and next to no arithmetic. Later targets are read
against their sum. What the engine takes now stands beside it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import (
    arguments,
    config,
    decoding,
    drain,
    english,
    machine,
    median_seconds,
    model_or_skip,
    picture,
    table,
    write,
)
from tiny import save_tiny
from torch import Tensor

from byref.contract.specs import LinearSpec, PoolSpec
from byref.engine import Engine

BATCHES = (1, 4, 16, 64)
PROMPT, NEW = 128, 128
CONTEXT = PROMPT + NEW // 2
"""Cached tokens of a stream halfway through W1."""
SWEEP_BYTES = 1 << 29


@dataclass(frozen=True)
class Floor:
    """Milliseconds of one decode step."""

    batch: int
    linears: float
    cache: float
    python: float
    measured: float

    @property
    def floor(self) -> float:
        """The sum that no step goes below, as this machine and torch are."""
        return self.linears + self.cache + self.python

    def figures(self) -> dict[str, float]:
        """As JSON."""
        rates = {"best_tokens_per_s": self.batch / self.floor * 1e3, "tokens_per_s": self.batch / self.measured * 1e3}
        return {**asdict(self), "floor": self.floor, **rates}


def linears_ms(engine: Engine, batch: int, repeat: int) -> float:
    """Every projection once, in the model's order, so that weights come from memory as they do in a step."""
    calls = [
        (bound.call, bound.spec.inputs) for bound in engine.parts.binder.bound if isinstance(bound.spec, LinearSpec)
    ]
    inputs = {n: torch.randn(batch, n, dtype=torch.bfloat16) for _, n in calls}

    @torch.inference_mode()
    def sweep() -> None:
        for call, n in calls:
            call(inputs[n])

    return median_seconds(sweep, repeat) * 1e3


def bandwidth(repeat: int, size: int = SWEEP_BYTES) -> float:
    """Bytes/s of reading memory far beyond the caches, with every thread."""
    block = torch.ones(size // 4, dtype=torch.int32)
    return size / median_seconds(lambda: _read(block), repeat)


def _read(block: Tensor) -> None:
    block.amax()


def cache_bytes(engine: Engine, batch: int) -> int:
    """Bytes of the cache that one decode step reads."""
    pools: list[PoolSpec] = list(engine.parts.sizing.pools)
    return batch * CONTEXT * sum(pool.width * pool.dtype.itemsize for pool in pools)


def step_ms(engine: Engine, batch: int, repeat: int, tokens: int = 0) -> float:
    """Median decode step with `batch` streams around CONTEXT cached tokens each."""
    prompt = tokens or CONTEXT - repeat // 2
    decoding(engine, english(engine.tokenizer, batch, prompt), repeat)
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    drain(engine)
    return statistics.median(times) * 1e3


def measure(engine: Engine, tiny: Engine, batches: tuple[int, ...], repeat: int) -> tuple[list[Floor], float]:
    speed = bandwidth(max(repeat // 4, 3))
    floors = [
        Floor(
            batch=batch,
            linears=linears_ms(engine, batch, repeat),
            cache=cache_bytes(engine, batch) / speed * 1e3,
            python=step_ms(tiny, batch, repeat, tokens=8),
            measured=step_ms(engine, batch, repeat),
        )
        for batch in batches
    ]
    return floors, speed


def weight_bytes(engine: Engine) -> int:
    """Bytes of the projections' weights; the vocabulary projection's are the embedding's in a tied model."""
    specs = [bound.spec for bound in engine.parts.binder.bound if isinstance(bound.spec, LinearSpec)]
    return sum(spec.inputs * spec.outputs for spec in specs) * engine.parts.sizing.dtype.itemsize


def layers(engine: Engine) -> int:
    """Number of layers."""
    return len({bound.spec.layer for bound in engine.parts.binder.bound} - {-1})


def draw(floors: list[Floor], speed: float) -> None:
    with picture("floor", 2) as figure:
        steps, rates = figure.axes
        at, bottom = range(len(floors)), [0.0] * len(floors)
        for name in ("linears", "cache", "python"):
            parts = [getattr(f, name) for f in floors]
            steps.bar(at, parts, 0.6, bottom=bottom, label=name)
            bottom = [a + b for a, b in zip(bottom, parts, strict=True)]
        steps.plot(at, [f.measured for f in floors], "k_", markersize=24, label="engine")
        steps.set_title(f"one decode step, ms (memory {speed / 1e9:.0f} GB/s)")
        rates.plot(at, [f.batch / f.floor * 1e3 for f in floors], "o--", label="best attainable")
        rates.plot(at, [f.batch / f.measured * 1e3 for f in floors], "o-", label="engine")
        rates.set_title("tokens/s")
        rates.set_yscale("log")
        for axis in figure.axes:
            axis.set_xticks(at, [str(f.batch) for f in floors])
            axis.set_xlabel(f"streams, {CONTEXT} cached tokens each")
            axis.legend()


def run(path: Path, args: Any, batches: tuple[int, ...], repeat: int) -> None:
    figures: dict[str, Any] = {"machine": machine(), "threads": args.threads, "dtype": "bfloat16", "context": CONTEXT}
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.start(config(path, args.threads, max_context=512)) as engine,
        Engine.start(config(save_tiny(Path(folder), layers(engine)), args.threads)) as tiny,
    ):
        floors, speed = measure(engine, tiny, batches, repeat)
        weights = weight_bytes(engine)
    head = ["streams", "linears ms", "cache ms", "python ms", "floor ms", "engine ms", "best tok/s", "engine tok/s"]
    rows = [
        [
            f.batch,
            f.linears,
            f.cache,
            f.python,
            f.floor,
            f.measured,
            f.batch / f.floor * 1e3,
            f.batch / f.measured * 1e3,
        ]
        for f in floors
    ]
    title = f"floor of a decode step; weights {weights / 1e6:.0f} MB, memory {speed / 1e9:.1f} GB/s"
    table(head, rows, title)
    if not args.quick:
        write(
            "floor", {**figures, "weight_bytes": weights, "bytes_per_s": speed, "steps": [f.figures() for f in floors]}
        )
        draw(floors, speed)


def main() -> int:
    args = arguments(__doc__, repeat=40).parse_args()
    torch.set_num_threads(args.threads)
    path = model_or_skip(args.model)
    run(path, args, (1, 4) if args.quick else BATCHES, 4 if args.quick else args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
