"""Which plugins are installed: reads the metadata of distributions, imports none of them.

The only module that imports importlib_metadata: importing it replaces the standard library's finder, so
objects of the two must not be mixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

import importlib_metadata

from byref.config.model import is_file
from byref.contract.errors import PluginError
from byref.contract.explain import nearest

GROUP = "byref.plugins"
"""Entry points: name of a plugin = `module:subclass of Plugin`."""
PROVIDES_GROUP = "byref.provides"
"""Entry points: capability = name of a plugin that provides it, so that a missing one can be named unimported."""


@dataclass(frozen=True, slots=True)
class Found:
    """One entry point, as its distribution's metadata states it."""

    name: str
    value: str
    dist: str
    version: str
    origin: str
    """The folder it was installed from, where it is editable or local; the folder it lies in, otherwise."""

    @property
    def one_off(self) -> bool:
        """Whether it is a Python file that the configuration names, and no distribution's."""
        return is_file(self.value)

    def __str__(self) -> str:
        return f"{self.name} ({self.dist} {self.version})" if self.version else f"{self.name} ({self.dist})"


Installed = Mapping[str, tuple[Found, ...]]
"""By plugin name. More than one entry: distributions that dispute the name."""


def scan() -> Installed:
    """Every installed plugin, by name."""
    found: dict[str, tuple[Found, ...]] = {}
    for point in importlib_metadata.entry_points(group=GROUP):
        one = _found(point)
        others = found.get(one.name, ())
        if not any((one.value, one.dist) == (other.value, other.dist) for other in others):  # a shadowed copy
            found[one.name] = (*others, one)
    return dict(sorted(found.items()))


def providers() -> Mapping[str, tuple[str, ...]]:
    """Per capability the installed plugins that say they provide it."""
    found: dict[str, tuple[str, ...]] = {}
    for point in importlib_metadata.entry_points(group=PROVIDES_GROUP):
        found[point.name] = (*found.get(point.name, ()), point.value)
    return found


def pick(installed: Installed, name: str) -> Found:
    """The plugin called `name`.

    Raises:
        PluginError: nobody, or more than one distribution, has a plugin of this name.
    """
    candidates = installed.get(name, ())
    if not candidates:
        have = ", ".join(installed) or "none"
        hint = nearest(name, list(installed))
        hint = hint if hint.startswith("did you mean") else f"install the plugin, or leave it out with `-p no:{name}`"
        raise PluginError(f"there is no plugin {name!r}", where=f"[plugins] enable; installed are: {have}", hint=hint)
    if len(candidates) > 1:
        both = " and ".join(f"{one.dist} {one.version} ({one.value})" for one in candidates)
        raise PluginError(f"the plugin name {name!r} is claimed by {both}", hint="uninstall one of them")
    return candidates[0]


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, None if it is not installed."""
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return None


def _found(point: importlib_metadata.EntryPoint) -> Found:
    dist = point.dist
    if dist is None:  # never from entry_points(), which sets it
        return Found(point.name, point.value, "unknown", "unknown", "unknown")
    url = getattr(dist.origin, "url", "") or ""
    parsed = urlparse(url)
    origin = unquote(parsed.path) if parsed.scheme == "file" else str(dist.locate_file(""))
    return Found(point.name, point.value, dist.name, dist.version, origin)
