"""The picture of `byref bench`. Knows matplotlib; measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from byref.cli.load import Level


def draw(levels: Sequence[Level], file: Path, title: str) -> None:
    """Throughput by concurrency, and how times of first and further tokens spread; a PNG, or what `file` ends in."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    throughput, first, gaps = figure.subplots(1, 3)
    figure.suptitle(title)
    names = [str(level.concurrency) for level in levels]
    bars = throughput.bar(names, [level.new_rate for level in levels], width=0.5)
    throughput.bar_label(bars, fmt="%.1f")
    throughput.margins(y=0.1)
    throughput.set(title="throughput", xlabel="requests at once", ylabel="new tokens per second")
    _spread(first, "first token", levels, [level.first for level in levels])
    _spread(gaps, "per further token", levels, [level.gaps for level in levels])
    figure.savefig(file)


def _spread(axes: Any, title: str, levels: Sequence[Level], seconds: Sequence[Sequence[float]]) -> None:
    """Which share came within which time."""
    for level, values in zip(levels, seconds, strict=True):
        if values:
            axes.ecdf([1000 * value for value in values], label=f"{level.concurrency} at once")
    axes.set(title=title, xlabel="milliseconds", ylabel="share within")
    axes.grid(alpha=0.3)
    if any(seconds):
        axes.legend()
