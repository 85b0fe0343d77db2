"""Options that several commands share, and the configuration they make. Knows names of options, not what they do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from byref.config import Config, load_config
from byref.config.layers import dotted, parse
from byref.contract.errors import ConfigError

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="byref.toml, or a pyproject.toml with [tool.byref].")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", "-p", help="Enable a plugin (`-p name`, `-p ./file.py`) or leave it out (`-p no:name`)."),
]
NoPlugins = Annotated[bool, typer.Option("--no-plugins", help="Enable none but those of -p.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Any value: `--set section.key=value`.")]


def complete_alias(incomplete: str) -> list[str]:
    """Known models that begin with what has been typed."""
    from byref.loading.catalog import CATALOG

    return [alias for alias in CATALOG if alias.startswith(incomplete)]


Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="An alias, a GGUF file, a folder, or a hub id (org/name).", autocompletion=complete_alias
    ),
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
MaxTokens = Annotated[int | None, typer.Option(help="At most so many new tokens.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this probability.")]
Seed = Annotated[int | None, typer.Option(help="Fixes the tokens.")]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the completion; may be repeated.")]
Param = Annotated[list[str] | None, typer.Option("--param", help="Any other sampling parameter: `--param name=value`.")]


def configure(
    file: Path | None = None,
    plugins: list[str] | None = None,
    no_plugins: bool = False,
    values: list[str] | None = None,
    own: Mapping[str, Any] | None = None,
    **model: str | None,
) -> Config:
    """The configuration of one command: `--set` first, then the options with names of their own; `own` are those that
    only this command has, by dotted key."""
    overrides: dict[str, Any] = {}
    for assignment in values or ():
        key, equals, text = assignment.partition("=")
        if not equals or "." not in key:
            raise ConfigError(
                f"--set {assignment} names no value", where="command line", hint="--set section.key=value"
            )
        overrides[key.strip()] = parse(dotted(key.strip()), text.strip())
    overrides |= {f"model.{key}": value for key, value in model.items() if value is not None}
    overrides |= own or {}
    if no_plugins:
        overrides["plugins.enable"] = []
    return load_config(file, overrides, plugins=plugins or ())
