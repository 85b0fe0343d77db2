"""Merges the layers, validates once, remembers origins. Knows precedence; knows no plugin."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from byref.config.layers import COMMAND_LINE, ENABLE, Layer, from_environment, from_file, from_overrides
from byref.config.model import DEFAULT, Config, is_file, named
from byref.config.model import Path as Key
from byref.contract.errors import ConfigError
from byref.contract.explain import Problem, problems, raise_problems

Values = dict[Key, tuple[Any, str]]


def load_config(
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    plugins: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    origin: str = COMMAND_LINE,
) -> Config:
    """The configuration: file, then BYREF_* variables, then overrides; later wins, value by value.

    Args:
        path: byref.toml or a pyproject.toml; None looks for them in the current folder.
        overrides: dotted keys (`{"model.path": "smollm2"}`) or nested tables.
        plugins: edits to the enabled plugins, applied last: `name` adds, `no:name` removes.
        environ: the environment; None is the process's.
        origin: what errors say of where overrides and edits came from.

    Raises:
        ConfigError: file or variable, field, and the nearest name of an unknown one.
    """
    merged: Values = {}
    files: set[str] = set()
    environment = from_environment(os.environ if environ is None else environ)
    for layer in (from_file(path), environment, from_overrides(overrides or {}, tuple(plugins), origin)):
        merged.update(layer.values)
        files |= {named(entry) for entry in (*_enabled(merged), *layer.edits) if is_file(entry)}
        _edit_enabled(merged, layer)
    _forget(merged, files - {named(entry) for entry in _enabled(merged)})
    return _validated(merged)


def _enabled(merged: Values) -> list[Any]:
    enabled, _ = merged.get(ENABLE, (Config().plugins.enable, DEFAULT))
    return [name for name in enabled if isinstance(name, str)] if isinstance(enabled, (list, tuple)) else []


def _forget(merged: Values, left_out: set[str]) -> None:
    """The tables of one-off plugins that are left out: unlike an installed plugin's, nobody else knows their names."""
    for key in [key for key in merged if key[0] == "plugins" and len(key) > 2 and key[1] in left_out]:
        del merged[key]


def _edit_enabled(merged: Values, layer: Layer) -> None:
    enabled, _ = merged.get(ENABLE, (Config().plugins.enable, DEFAULT))
    if not layer.edits or not isinstance(enabled, (list, tuple)):
        return
    names = list(enabled)
    for edit in layer.edits:
        name = edit.removeprefix("no:")
        if edit.startswith("no:"):
            names = [other for other in names if not isinstance(other, str) or named(other) != named(name)]
        elif name not in names:
            names.append(name)
    if names != list(enabled):
        merged[ENABLE] = (names, layer.origin)


def _validated(merged: Values) -> Config:
    origins = {".".join(key): origin for key, (_, origin) in merged.items()}
    try:
        config = Config.model_validate(_nest(merged))
    except ValidationError as error:
        raise_problems(ConfigError, list(problems(error, Config)), lambda p: _place(p, origins), error)
    return config.remember(origins)


def _nest(merged: Values) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for key, (value, origin) in merged.items():
        *tables, name = key
        table = root
        for part in tables:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f"{'.'.join(key)} is set, and so is {part!r}, which is not a table", where=origin)
        if isinstance(table.get(name), dict):
            raise ConfigError(f"{'.'.join(key)} is a table, not a value", where=origin)
        table[name] = value
    return root


def _place(problem: Problem, origins: Mapping[str, str]) -> str:
    """The source of a field, or of any value of the table that the problem is about."""
    inside = [
        o
        for key, o in origins.items()
        if key == problem.field or key.startswith(f"{problem.field}.") or not problem.field
    ]
    around = [o for key, o in origins.items() if problem.field.startswith(f"{key}.")]
    source = (inside or around or [DEFAULT])[0]
    return f"{source}, field {problem.field}" if problem.field else source
