"""Where values come from: files, the environment, the command line. Knows how each is written, not what it means."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byref.config.model import Config, flatten
from byref.config.model import Path as Key
from byref.contract.errors import ConfigError
from byref.contract.explain import nearest

PREFIX = "BYREF_"
ENABLE: Key = ("plugins", "enable")
LISTS = {"BYREF_PLUGINS": "the plugins to enable", "BYREF_DISABLE_PLUGINS": "the plugins to leave out"}
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Layer:
    """Values of one source, each with its origin, and edits to `plugins.enable`."""

    values: Mapping[Key, tuple[Any, str]] = field(default_factory=dict)
    edits: tuple[str, ...] = ()
    """Changes to the enabled plugins: `name` adds, `no:name` removes."""
    origin: str = ""


def from_file(path: Path | None) -> Layer:
    """byref.toml, or `[tool.byref]` of pyproject.toml; without a path, whichever the current folder has."""
    if path is None:
        path = next((p for p in (Path("byref.toml"), Path("pyproject.toml")) if p.is_file()), None)
        if path is None:
            return Layer()
    table = _read(path)
    if path.name == "pyproject.toml":
        table = table.get("tool", {}).get("byref", {})
    return Layer({key: (value, str(path)) for key, value in flatten(table)})


def from_environment(environ: Mapping[str, str]) -> Layer:
    """BYREF_<SECTION>__<KEY>, BYREF_PLUGINS and BYREF_DISABLE_PLUGINS."""
    values: dict[Key, tuple[Any, str]] = {}
    if "BYREF_PLUGINS" in environ:
        values[ENABLE] = (_names(environ["BYREF_PLUGINS"]), "BYREF_PLUGINS")
    for name in sorted(environ):
        if name.startswith(PREFIX) and "__" in name:
            key = _key_of(name)
            values[key] = (parse(key, environ[name]), name)
        elif name.startswith(PREFIX):
            _refuse_misspelt(name)
    without = tuple(f"no:{name}" for name in _names(environ.get("BYREF_DISABLE_PLUGINS", "")))
    return Layer(values, without, "BYREF_DISABLE_PLUGINS")


def from_overrides(overrides: Mapping[str, Any], plugins: tuple[str, ...] = (), origin: str = COMMAND_LINE) -> Layer:
    """Values of the command line or of a program, and its `-p name` and `-p no:name`."""
    values = {dotted(".".join(key)): (value, origin) for key, value in flatten(overrides)}
    return Layer(values, plugins, origin)


def dotted(text: str) -> Key:
    """The path that a dotted key names."""
    return tuple(text.split(".", 1 if text.startswith("bind.") else -1))


def parse(key: Key, text: str) -> Any:
    """A value written as text: TOML where it is that and the key does not ask for text."""
    section, name = key[0], key[-1]
    owner = Config.model_fields.get(section)
    model = getattr(owner.annotation, "model_fields", {}) if owner else {}
    if section == "bind" or (name in model and model[name].annotation is str):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "there is no such configuration file", where=str(path), hint="write one with `byref init MODEL`"
        ) from None
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"the configuration file cannot be read: {cause}", where=str(path)) from cause
    except tomllib.TOMLDecodeError as cause:
        raise ConfigError(
            f"the configuration is not TOML: {cause}", where=str(path), hint="see https://toml.io"
        ) from cause


def _key_of(variable: str) -> Key:
    section, *rest = variable.removeprefix(PREFIX).split("__")
    section = section.lower()
    if section not in Config.model_fields:
        hint = nearest(section, Config.model_fields)
        raise ConfigError(f"the environment variable {variable} names no section", where=variable, hint=hint)
    return (section, *(rest if section == "bind" else (part.lower() for part in rest)))


def _refuse_misspelt(name: str) -> None:
    """Other variables have other readers; a bare section, or one that nearly is a list of plugins, is a mistake."""
    section = name.removeprefix(PREFIX).lower()
    if section in Config.model_fields and name not in LISTS:
        raise ConfigError(
            f"{name} names a section, not a value", where="environment", hint=f"{name}__<KEY>, e.g. BYREF_MODEL__PATH"
        )
    hint = nearest(name, LISTS)
    if name not in LISTS and hint.startswith("did you mean"):
        raise ConfigError(f"unknown environment variable {name}", where="environment", hint=hint)


def _names(text: str) -> list[str]:
    return list(_stripped(text.split(",")))


def _stripped(parts: list[str]) -> Iterator[str]:
    return (part.strip() for part in parts if part.strip())
