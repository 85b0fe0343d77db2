"""`byref plugins`: what is installed, enabled and called in which order. `list` imports no plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from byref.cli import options
from byref.cli.bound import COLUMNS, groups
from byref.config import Config
from byref.config.model import is_file, named
from byref.plugins.discovery import Found, Installed, pick, scan

app = typer.Typer(help="Plugins.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Bound = Annotated[bool, typer.Option("--bound", help="Load the model, print who answers which layers, and how.")]


@app.command("list")
def list_plugins(
    config: options.ConfigFile = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    order: Annotated[bool, typer.Option("--order", help="Load the enabled ones, print each hook's order.")] = False,
    bound: Bound = False,
    model: options.Model = None,
    as_json: Json = False,
) -> None:
    """Print what is installed and what is enabled, without importing any of it unless asked for more."""
    settings = options.configure(config, plugin, no_plugins, path=model)
    rows = _rows(settings, scan())
    hooks = _order(settings) if order else None
    answers = _bound(settings) if bound else None
    if as_json:
        facts = {"plugins": rows, "hooks": hooks, "bound": answers}
        print(json.dumps({key: value for key, value in facts.items() if value is not None}, indent=2))
        return
    _table(rows, ("name", "status", "dist", "version", "origin"))
    for hook, names in (hooks or {}).items():
        print(f"{hook}: {' -> '.join(names) or '-'}")
    if answers is not None:
        _table(answers, COLUMNS)


@app.command()
def info(
    name: str,
    config: options.ConfigFile = None,
    bound: Bound = False,
    model: options.Model = None,
    as_json: Json = False,
) -> None:
    """Import one plugin, or a file's, and print what it declares; with --bound what it answers."""
    from byref.plugins.loader import load_class, make

    settings = options.configure(config)
    enabled = named(name) in map(named, settings.plugins.enable)
    entry = _entry(settings, name)
    found = _found(entry)
    name, cls = found.name, load_class(found)
    # What an enabled one declares may follow from its options.
    declared = make(found, cls, settings.plugins.options.get(name, {})).info if enabled else cls.info
    facts: dict[str, Any] = {
        "name": name,
        "status": "enabled" if enabled else "installed",
        "distribution": f"{found.dist} {found.version}".rstrip(),
        "entry point": found.value,
        "origin": found.origin,
        "about": (cls.__doc__ or "").strip().split("\n")[0],
        "api version": declared.api_version,
        "provides": list(declared.provides),
        "requires": list(declared.requires),
        "conflicts": list(declared.conflicts),
        "lossless": declared.lossless,
        "options": _fields(cls.Options),
        "request options": _fields(cls.RequestOptions),
    }
    if bound:
        with_it = options.configure(config, [entry], path=model)
        facts["bound"] = [one for one in _bound(with_it) if one["by"] == name]
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    answers = facts.pop("bound", None)
    width = max(map(len, facts))
    for key, value in facts.items():
        print(f"{key:<{width}}  {_lines(value, width)}")
    if answers is not None:
        _table(answers, COLUMNS)


@app.command()
def check(name: str, config: options.ConfigFile = None, plugin: options.Plugins = None) -> None:
    """Load a plugin as a start would, with those it needs (`-p`), and say which hooks it implements."""
    from byref.plugins.host import PluginHost

    entry = _entry(options.configure(config), name)
    host = PluginHost.load(options.configure(config, [*(plugin or ()), entry]))
    loaded = host.plugin(named(entry))
    hooks = [hook for hook, names in host.describe().items() if loaded.name in names]
    print(f"{loaded}: fine; hooks: {', '.join(hooks) or 'none'}")


def _rows(settings: Config, installed: Installed) -> list[dict[str, str]]:
    enabled = settings.plugins.enable
    rows = []
    for name, candidates in installed.items():
        status = "ambiguous" if len(candidates) > 1 else "enabled" if name in enabled else "installed"
        rows += [
            {"name": name, "status": status, "dist": one.dist, "version": one.version, "origin": one.origin}
            for one in candidates
        ]
    for name in enabled:
        if name not in installed:
            there = is_file(name) and Path(name).is_file()
            row = {"name": named(name), "status": "enabled" if there else "missing", "dist": "", "version": ""}
            rows.append(row | {"origin": name if is_file(name) else ""})
    return rows


def _entry(settings: Config, name: str) -> str:
    """The entry of `enable` that bears the name: of a one-off plugin its file; `name` itself where none does."""
    return next((entry for entry in settings.plugins.enable if named(entry) == name), name)


def _found(entry: str) -> Found:
    from byref.plugins.loader import find_file

    return find_file(entry) if is_file(entry) else pick(scan(), entry)


def _order(settings: Config) -> dict[str, list[str]]:
    from byref.plugins.host import PluginHost

    host = PluginHost.load(settings)
    return {**host.describe(), "commands": sorted(host.registry.commands)}


def _bound(settings: Config) -> list[dict[str, str]]:
    """Who answers what, from a start that stops before the first forward."""
    from byref.engine.start import assemble
    from byref.plugins.host import PluginHost

    host = PluginHost.load(settings)
    try:
        return groups(assemble(settings, host).binder.bound)
    finally:
        host.hooks.shutdown()


def _table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> None:
    widths = [max(len(column), *(len(row[column]) for row in rows)) if rows else len(column) for column in columns]
    for row in [{column: column for column in columns}, *rows]:
        print("  ".join(f"{row[column]:<{width}}" for column, width in zip(columns, widths, strict=True)).rstrip())


def _fields(model: type[Any] | None) -> dict[str, str]:
    if model is None:
        return {}
    schema = model.model_json_schema().get("properties", {})
    return {name: _kind(field) for name, field in schema.items()}


def _kind(field: dict[str, Any]) -> str:
    kind = field.get("type") or " | ".join(str(one.get("type", "any")) for one in field.get("anyOf", ())) or "any"
    kind = " | ".join(json.dumps(value) for value in field["enum"]) if "enum" in field else kind
    return f"{kind} = {json.dumps(field['default'])}" if "default" in field else f"{kind}, required"


def _lines(value: object, indent: int) -> str:
    if isinstance(value, dict):
        return f"\n{'':<{indent + 2}}".join(f"{name}: {text}" for name, text in value.items()) or "-"
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value)) or "-"
