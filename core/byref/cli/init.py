"""`byref init`: writes a byref.toml for a model. Knows what a configuration file looks like; reads no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from byref.contract.errors import ConfigError, ModelError

FILE = Path("byref.toml")


def init(model: Annotated[str, typer.Argument(metavar="MODEL", help="An alias, a GGUF file, or a folder.")]) -> None:
    """Write a byref.toml with what the model needs."""
    from byref.plugins.discovery import scan

    if FILE.exists():
        raise ConfigError(f"{FILE} is there already", where=str(Path.cwd()), hint="edit it, or move it away first")
    enable, fetch = _needed(model)
    others = [name for name in scan() if name not in enable]
    lines = ["[model]", f"path = {json.dumps(model)}", "", "[plugins]", f"enable = {json.dumps(enable)}"]
    if others:
        lines.insert(4, f"# installed, not enabled: {', '.join(others)}")
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {FILE}; next: {f'byref pull {model}, then ' if fetch else ''}byref generate PROMPT")


def _needed(model: str) -> tuple[list[str], bool]:
    """The plugins that `model` needs, and whether it must be pulled first."""
    from byref.config import Config
    from byref.loading import open_checkpoint
    from byref.loading.catalog import CATALOG
    from byref.plugins import PluginHost
    from byref.plugins.discovery import providers

    default = list(Config().plugins.enable)
    if model in CATALOG and not CATALOG[model].path.exists():
        return default, True  # every model of the catalog runs with the default plugins
    architecture = open_checkpoint(model).architecture
    known = PluginHost.load(Config()).registry.models
    owners = providers().get(architecture, ())
    if architecture in known:
        return [*default, *owners[:1]], False  # an architecture that is known may need another plugin to run
    if not owners:
        what = f"no installed plugin knows the architecture {architecture!r}"
        hint = f"known are: {', '.join(sorted(known))}; install a plugin that has it"
        raise ModelError(what, where=model, hint=hint)
    return [*default, owners[0]], False
