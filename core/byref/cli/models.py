"""`byref models`: which models are known, which are here, and what can run them. Opens none."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from byref.cli import options


def models(
    config: options.ConfigFile = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of tables.")] = False,
) -> None:
    """List the known models, what is in the caches, and the architectures of enabled plugins."""
    from byref.loading.catalog import models_folder

    facts: dict[str, Any] = {
        "folder": str(models_folder()),
        "models": _known(),
        "files": _files(),
        "hub": _hub(),
        "architectures": _architectures(config, plugin, no_plugins=no_plugins),
    }
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    _table("known models (byref pull NAME)", facts["models"])
    _table(f"other files in {facts['folder']}", facts["files"])
    _table("in the hub's cache", facts["hub"])
    _table("architectures of enabled plugins", facts["architectures"])


def size(count: int) -> str:
    """Bytes, for people: 92.9 MB."""
    from rich.filesize import decimal

    return decimal(count)


def _known() -> list[dict[str, str]]:
    from byref.loading.catalog import CATALOG

    rows = []
    for alias, entry in CATALOG.items():
        here = entry.path.is_file()
        state = size(entry.path.stat().st_size) if here else f"not here, {size(entry.download_bytes)} to fetch"
        rows.append({"name": alias, "size": state, "about": entry.about, "path": str(entry.path) if here else ""})
    return rows


def _files() -> list[dict[str, str]]:
    """GGUF files in the folder that nobody pulled."""
    from byref.loading.catalog import CATALOG, models_folder

    known = {entry.path for entry in CATALOG.values()}
    found = sorted(path for path in models_folder().glob("*.gguf") if path not in known)
    return [{"name": path.name, "size": size(path.stat().st_size)} for path in found]


def _hub() -> list[dict[str, str]]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = sorted((repo for repo in repos if repo.repo_type == "model"), key=lambda repo: repo.repo_id)
    return [{"name": repo.repo_id, "size": size(repo.size_on_disk)} for repo in found]


def _architectures(config: Any, plugin: list[str] | None, *, no_plugins: bool) -> list[dict[str, str]]:
    from byref.plugins import PluginHost
    from byref.plugins.registry import MODEL

    known = PluginHost.load(options.configure(config, plugin, no_plugins)).registry
    return [{"name": name, "plugin": str(known.owner(MODEL, name))} for name in sorted(known.models)]


def _table(title: str, rows: list[dict[str, str]]) -> None:
    if not rows:
        return
    print(f"{title}:")
    columns = [column for column in rows[0] if column != "path"]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    for row in rows:
        print("  " + "  ".join(f"{row[column]:<{widths[column]}}" for column in columns).rstrip())
