"""What the benchmarks share: prompts, medians, results as JSON and pictures. Knows the engine's public face only."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.config import Config, EngineSection, ModelSection
from byref.contract.errors import ByrefError
from byref.contract.plugin import NoOptions
from byref.contract.requests import SamplingParams
from byref.contract.step import StepReport
from byref.engine import Engine
from byref.loading import open_checkpoint
from byref.text import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
THREADS = 2
SEED = 0


def arguments(description: str | None, repeat: int = 3) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="smollm2", help="alias of `byref pull`, or a GGUF file")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--repeat", type=int, default=repeat, help="measurements of each figure; medians are reported")
    parser.add_argument("--quick", action="store_true", help="tiny settings: does it run at all; writes no result")
    return parser


def model_or_skip(name: str) -> Path:
    """The checkpoint's file; ends the program with a sentence where it has not been fetched."""
    try:
        return open_checkpoint(name).path
    except ByrefError as error:
        raise SystemExit(f"skipped: {error}") from None


def config(model: Path, threads: int = THREADS, *, dtype: str = "bfloat16", **engine: Any) -> Config:
    """A configuration on the CPU; everything else as a user gets it."""
    sizes = EngineSection(threads=threads, seed=SEED, **engine)
    return Config(model=ModelSection(path=str(model), dtype=dtype, device="cpu"), engine=sizes)  # type: ignore[arg-type]


def greedy(new: int) -> SamplingParams:
    """So many new tokens, whatever they are."""
    return SamplingParams(max_tokens=new, ignore_eos=True)


def english(tokenizer: Tokenizer, count: int, length: int, skip: int = 0) -> list[tuple[int, ...]]:
    """`count` different prompts of `length` tokens: slices of the Python manual that `pydoc` carries."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = tokenizer.encode(text)[skip:]
    if count * length > len(ids):
        raise SystemExit(f"{count} prompts of {length} tokens need more text than the manual's {len(ids)} tokens")
    return [tuple(ids[i * length : (i + 1) * length]) for i in range(count)]


def median_seconds(call: Callable[[], object], repeat: int, warm: int = 3) -> float:
    """Median wall time of a call."""
    for _ in range(warm):
        call()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def alternating(names: Sequence[str], repeat: int) -> Iterator[tuple[int, str]]:
    """Every name once a round; the order turns round each time, so that drift favours nobody."""
    for i in range(repeat):
        yield from ((i, name) for name in (names if i % 2 == 0 else reversed(names)))


class Watch(Plugin[NoOptions]):
    """Keeps the figures of each step, and does nothing else."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name: str, options: NoOptions) -> None:
        super().__init__(name, options)
        self.reports: list[StepReport] = []

    @hookimpl
    def step_done(self, report: StepReport) -> None:
        """One more."""
        self.reports.append(report)


def watched(engine: Engine) -> list[StepReport]:
    """What the engine's plugin `watch` has kept so far."""
    plugin = engine.parts.host.plugin("watch").instance
    assert isinstance(plugin, Watch)
    return plugin.reports


def decoding(engine: Engine, prompts: Sequence[Sequence[int]], new: int) -> None:
    """Queue the prompts and step until each of them decodes, with at least `new` tokens to come."""
    steps = sum(map(len, prompts)) * 2 // engine.parts.sizing.max_rows + 8  # the first ones decode in these already
    waiting = {engine.add(prompt, greedy(new + steps)) for prompt in prompts}
    while waiting:
        waiting -= {chunk.request_id for chunk in engine.step()}


def drain(engine: Engine) -> None:
    """Step until nothing is left."""
    while not engine.idle:
        engine.step()


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def write(name: str, figures: dict[str, Any]) -> None:
    """`results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    print(f"wrote {path}")


@contextmanager
def picture(name: str, columns: int, height: float = 3.4) -> Iterator[Figure]:
    """A figure of so many panels side by side, saved as `results/<name>.png`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, _ = plt.subplots(1, columns, figsize=(4.2 * columns, height), squeeze=False, layout="constrained")
    yield figure
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path}")


def table(head: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for i, name in enumerate(head):
        drawn.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        drawn.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=120).print(drawn)
