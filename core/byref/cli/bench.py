"""`byref bench`: throughput and latency of a model here. Knows how results are shown; load makes them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from byref.cli import options
from byref.contract.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from byref.cli.load import Level

PICTURE = Path("byref-bench.png")


def bench(
    model: options.Model = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests at each level of concurrency.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt: random ones.")] = 32,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of each request.")] = 32,
    concurrency: Annotated[list[int] | None, typer.Option(help="Requests at once; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes the prompts.")] = 0,
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = PICTURE,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Draw none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    set: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Measure throughput and latency at some levels of concurrency; print a table, draw a picture."""
    settings = options.configure(config, plugin, no_plugins, set, path=model, device=device, dtype=dtype)
    levels = sorted({*(concurrency or (1, 8))})
    if not 1 <= levels[0] <= levels[-1] <= settings.engine.max_requests:
        what = f"concurrency goes from 1 to the {settings.engine.max_requests} requests that run at once"
        hint = "1 or more" if levels[0] < 1 else f"--set engine.max_requests={levels[-1]}"
        raise ConfigError(what, where="--concurrency", hint=hint)
    from byref.api.progress import Batch
    from byref.cli.load import Load
    from byref.engine import Engine

    with Engine.start(settings) as engine, Batch(requests * len(levels)) as bar:
        load = Load(engine, prompt_tokens, max_tokens, seed, bar)
        measured = [load.run(requests, level) for level in levels]
    if as_json:
        print(json.dumps([dataclasses.asdict(level) for level in measured], indent=2))
    else:
        _print(_table(measured))
    if not no_picture:
        _draw(measured, picture, settings.model.path)


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)


def _table(levels: list[Level]) -> Table:
    """One column a level; latencies as 50th / 90th / 99th percentile."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, caption="times: 50th / 90th / 99th percentile", caption_justify="left")
    table.add_column("requests at once")
    for level in levels:
        table.add_column(str(level.concurrency), justify="right")
    rows: dict[str, Callable[[Level], str]] = {
        "new tokens/s": lambda level: f"{level.new_rate:.1f}",
        "all tokens/s": lambda level: f"{level.rate:.1f}",
        "requests/s": lambda level: f"{level.request_rate:.2f}",
        "first token, ms": lambda level: _percentiles(level.first, 1000, 0),
        "further token, ms": lambda level: _percentiles(level.gaps, 1000, 1),
        "whole request, s": lambda level: _percentiles(level.total, 1, 2),
    }
    for name, cell in rows.items():
        table.add_row(name, *map(cell, levels))
    return table


def _percentiles(seconds: list[float], scale: int, digits: int) -> str:
    from numpy import percentile

    if not seconds:
        return "-"
    return " / ".join(f"{scale * value:.{digits}f}" for value in percentile(seconds, (50, 90, 99)).tolist())


def _draw(levels: list[Level], file: Path, model: str) -> None:
    if find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed (pip install matplotlib)", file=sys.stderr)
        return
    from byref.cli.picture import draw

    draw(levels, file, model)
    print(f"picture: {file}", file=sys.stderr)
