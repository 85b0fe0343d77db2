"""`byref config`: what is configured, and where each value came from. Loads no plugin."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from byref.cli import options

app = typer.Typer(help="The configuration.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The configuration."""


@app.command()
def show(
    config: options.ConfigFile = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    set: options.Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print every value and its origin."""
    items = list(options.configure(config, plugin, no_plugins, set).items())
    if as_json:
        print(
            json.dumps({key: {"value": value, "origin": origin} for key, value, origin in items}, indent=2, default=str)
        )
        return
    lines = [(f"{key} = {_text(value)}", origin) for key, value, origin in items]
    width = max(len(line) for line, _ in lines)
    for line, origin in lines:
        print(f"{line:<{width}}  # {origin}")


def _text(value: object) -> str:
    return "(none)" if value is None else json.dumps(value, default=str)
