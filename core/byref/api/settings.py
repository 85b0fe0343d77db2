"""From the arguments of `LLM` to a configuration. Knows sections' names, not what their values do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from byref.config import Config, EngineSection, ModelSection, load_config
from byref.contract.errors import ConfigError
from byref.contract.explain import nearest
from byref.contract.plugin import Plugin

PluginLike = str | type[Plugin[Any]]
Options = Mapping[str, Mapping[str, Any]]

ORIGIN = "LLM(...)"
_SECTIONS: Mapping[str, type[BaseModel]] = {"model": ModelSection, "engine": EngineSection}


def configure(
    model: str | Path | None,
    plugins: Sequence[PluginLike],
    options: Options,
    config: Config | Path | str | None,
    settings: Mapping[str, Any],
) -> Config:
    """The configuration that the arguments of `LLM` ask for.

    Raises:
        ConfigError: an unknown setting or a wrong value, or values beside a configuration that is complete.
    """
    names = [plugin if isinstance(plugin, str) else name_of(plugin) for plugin in plugins]
    overrides = _overrides(settings) | ({} if model is None else {"model.path": str(model)})
    overrides |= {f"plugins.{name}": dict(table) for name, table in options.items()}
    if not isinstance(config, Config):
        return load_config(None if config is None else Path(config), overrides, plugins=names, origin=ORIGIN)
    if overrides or any(isinstance(plugin, str) for plugin in plugins):
        what = "a Config is complete: a model, settings, options and names of plugins belong into it"
        raise ConfigError(what, where=ORIGIN, hint="load_config(overrides=...) makes one of files and values")
    return config


def classes_of(plugins: Sequence[PluginLike]) -> dict[str, type[Plugin[Any]]]:
    """The plugins that are handed over as classes, by name."""
    return {name_of(plugin): plugin for plugin in plugins if not isinstance(plugin, str)}


def name_of(plugin: type[Plugin[Any]]) -> str:
    """What a plugin that is handed over as a class is called: DraftTree is draft_tree."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plugin.__name__).lower()


def _overrides(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys of the configuration for names of [model] and [engine]."""
    owners = {name: section for section, model in _SECTIONS.items() for name in model.model_fields if name != "path"}
    for name in settings:
        if name not in owners:
            raise ConfigError(f"there is no setting {name!r}", where=ORIGIN, hint=nearest(name, owners))
    return {f"{owners[name]}.{name}": value for name, value in settings.items()}
