"""`byref bench spec`: drafters compared on a file of prompts. Knows how results are shown; measure makes them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from byref.cli import jsonl, options
from byref.contract.requests import SamplingParams

if TYPE_CHECKING:
    from rich.table import Table

    from byref.config import Config
    from byref_spec_decoding.measure import Job, Measured

DEFAULT = ("ngram", "suffix")


def bench_spec(
    prompts: Annotated[Path, typer.Argument(metavar="IN.JSONL", help="Requests, as `byref batch` reads them.")],
    drafter: Annotated[
        list[str] | None, typer.Option(help="NAME, or NAME:OPTION=VALUE,...; may be repeated. ngram and suffix.")
    ] = None,
    model: options.Model = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens of each prompt, unless its line says.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    together: Annotated[int, typer.Option(min=1, help="Prompts at once.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Times over all prompts; medians are shown.")] = 3,
    picture: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("byref-bench-spec.png"),
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Draw none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    plugin: options.Plugins = None,
    set: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Compare drafters with plain decoding on your own prompts: a table, and a picture."""
    settings = options.configure(config, plugin, False, set, path=model, device=device, dtype=dtype)
    from byref_spec_decoding.measure import compare, ways

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=0)
    jobs = read_jobs(settings, prompts, params)
    measured = compare(dict(ways(settings, drafter or DEFAULT)), jobs, together, rounds)
    if as_json:
        print(
            json.dumps(
                [{**asdict(one), "rate": one.rate, "ratio": one.ratio(measured[0])} for one in measured], indent=2
            )
        )
    else:
        _print(_table(measured, len(jobs)))
    if not no_picture:
        _draw(measured, picture, f"{settings.model.path}, {together} at once")


def read_jobs(settings: Config, source: Path, params: SamplingParams) -> list[Job]:
    """Every line's prompt as token ids."""
    from byref.loading import open_checkpoint

    tokenizer = open_checkpoint(settings.model.path).tokenizer()
    jobs = []
    for number, text in jsonl.numbered(source):
        line = jsonl.request(source, number, text, params)
        ids = line.envelope.prompt
        if line.envelope.messages:
            ids = tuple(tokenizer.encode(tokenizer.chat(line.envelope.messages), special=False))
        jobs.append((tokenizer.encode(ids) if isinstance(ids, str) else list(ids or ()), line.params))
    return jobs


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)


def _table(measured: list[Measured], prompts: int) -> Table:
    """One row a way; ratios are to plain decoding."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, caption="accepted: share of drafts, by position in brackets", caption_justify="left")
    for name in ("", "tokens/s", "ratio", "drafts", "accepted", "per window", "drafting", "equal"):
        table.add_column(name, justify="left" if not name else "right", overflow="fold")
    for one in measured:
        positions = " ".join(f"{n / one.windows:.2f}" for n in one.accepted_at)
        cells = (
            f"{one.rate:.1f}",
            f"{one.ratio(measured[0]):.2f}",
            str(one.drafted or "-"),
            f"{one.accepted / one.drafted:.2f} ({positions})" if one.drafted else "-",
            f"{one.accepted / one.windows:.2f}" if one.windows else "-",
            f"{one.drafting / one.seconds[-1]:.1%}" if one.drafted else "-",
            f"{one.same} of {prompts}",
        )
        table.add_row(one.name, *cells)
    return table


def _draw(measured: list[Measured], file: Path, title: str) -> None:
    if find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed (pip install matplotlib)", file=sys.stderr)
        return
    from byref_spec_decoding.picture import draw

    draw(measured, file, title)
    print(f"picture: {file}", file=sys.stderr)
