"""The picture of `byref bench spec`. Knows matplotlib; measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from byref_spec_decoding.measure import Measured


def draw(measured: Sequence[Measured], file: Path, title: str) -> None:
    """Rates beside how far drafts were accepted; a PNG, or what `file` ends in."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    rates, positions = figure.subplots(1, 2)
    figure.suptitle(title)
    bars = rates.barh([one.name for one in measured], [one.rate for one in measured], height=0.6)
    rates.bar_label(bars, [f"{one.rate:.1f} ({one.ratio(measured[0]):.2f} x)" for one in measured], padding=3)
    rates.margins(x=0.2)
    rates.invert_yaxis()
    rates.set(title="new tokens per second", xlabel="ratio to plain decoding in brackets")
    for one in measured:
        if one.windows:
            shares = [n / one.windows for n in one.accepted_at]
            positions.plot(range(1, len(shares) + 1), shares, marker="o", label=one.name)
    positions.set(title="windows in which so many drafts were accepted", xlabel="drafts", ylabel="share", ylim=(0, 1))
    positions.grid(alpha=0.3)
    if positions.get_legend_handles_labels()[0]:
        positions.legend()
    figure.savefig(file)
