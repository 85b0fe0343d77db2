"""What plugins announced when they were registered. Knows names and who took them; imports none of the targets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from byref.contract.errors import PluginError
from byref.contract.explain import nearest
from byref.contract.plugin import RoleSource
from byref.contract.roles import TARGET
from byref.contract.step import MAX_TREE
from byref.plugins.loader import Loaded

MODEL, ROLE, POLICY, COMMAND, ROUTE = "model", "role", "policy", "command", "route"
OWN = (MODEL, ROLE, POLICY, COMMAND, ROUTE)
_PATH = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)*")


@dataclass(frozen=True, slots=True)
class Entry:
    """One announcement."""

    value: Any
    plugin: Loaded


@dataclass(slots=True)
class Announced:
    """Everything announced by every plugin."""

    entries: dict[str, dict[str, Entry]] = field(default_factory=dict)
    """Kind -> name -> entry."""
    max_drafts: int = 0
    """Most drafts any plugin announced for one window."""
    sealed: bool = False

    @property
    def models(self) -> Mapping[str, str]:
        """Architecture -> `module:attribute`."""
        return self._values(MODEL)

    @property
    def roles(self) -> Mapping[str, RoleSource]:
        """Further roles, in the order they were announced."""
        return self._values(ROLE)

    @property
    def policies(self) -> Mapping[str, Callable[[], Any]]:
        """Name -> maker."""
        return self._values(POLICY)

    @property
    def commands(self) -> Mapping[str, str]:
        """Name -> `module:attribute`."""
        return self._values(COMMAND)

    @property
    def routes(self) -> Mapping[str, Callable[[], Any]]:
        """Path -> maker of an ASGI application."""
        return self._values(ROUTE)

    def owner(self, kind: str, name: str) -> Loaded:
        """The plugin that announced it."""
        return self.entries[kind][name].plugin

    def lookup(self, kind: str, name: str) -> object:
        """What was announced; a PluginError that lists the known names, otherwise."""
        known = self.entries.get(kind, {})
        if name not in known:
            have = ", ".join(sorted(known)) or "none"
            raise PluginError(f"there is no {kind} {name!r}", where=f"announced are: {have}", hint=nearest(name, known))
        return known[name].value

    def add(self, kind: str, name: str, value: object, plugin: Loaded) -> None:
        """Keep one announcement."""
        if self.sealed:
            raise PluginError(
                f"{kind} {name!r} comes too late", where=f"plugin {plugin}", hint="announce it in `register`"
            )
        known = self.entries.setdefault(kind, {})
        if name in known:
            both = f"plugins {known[name].plugin} and {plugin}"
            raise PluginError(f"the {kind} {name!r} is announced twice", where=both, hint="disable one of the two")
        known[name] = Entry(value, plugin)

    def _values(self, kind: str) -> dict[str, Any]:
        return {name: entry.value for name, entry in self.entries.get(kind, {}).items()}


@dataclass(frozen=True, slots=True)
class Registrar:
    """The `Registry` one plugin sees: what it announces is its own, what it looks up is everybody's."""

    announced: Announced
    plugin: Loaded

    def model(self, architecture: str, target: str) -> None:
        """See `Registry`."""
        self.announced.add(MODEL, architecture, self._target(target), self.plugin)

    def role(self, name: str, source: RoleSource) -> None:
        """See `Registry`."""
        if name == TARGET:
            raise PluginError(
                "the role 'target' is core's own", where=f"plugin {self.plugin}", hint="name another role"
            )
        self.announced.add(ROLE, name, source, self.plugin)

    def drafts(self, most: int) -> None:
        """See `Registry`."""
        if not 0 <= most <= MAX_TREE:
            hint = f"a number from 0 to {MAX_TREE}"
            raise PluginError(f"a window cannot hold {most} drafts", where=f"plugin {self.plugin}", hint=hint)
        self.announced.max_drafts = max(self.announced.max_drafts, most)

    def policy(self, name: str, make: Callable[[], Any]) -> None:
        """See `Registry`."""
        self.announced.add(POLICY, name, make, self.plugin)

    def command(self, name: str, target: str) -> None:
        """See `Registry`."""
        self.announced.add(COMMAND, name, self._target(target), self.plugin)

    def route(self, path: str, make: Callable[[], Any]) -> None:
        """See `Registry`."""
        if not _PATH.fullmatch(path):
            hint = "small letters, digits, _ and -, in parts joined by /"
            raise PluginError(f"{path!r} is no path of a route", where=f"plugin {self.plugin}", hint=hint)
        full = f"/plugins/{self.plugin.name}/{path}"
        for other in self.announced.routes:
            if full.startswith(f"{other}/") or other.startswith(f"{full}/"):
                both = f"plugin {self.plugin}"
                raise PluginError(f"the routes {other} and {full} lie within each other", where=both, hint="rename one")
        self.announced.add(ROUTE, full, make, self.plugin)

    def register(self, kind: str, name: str, value: object) -> None:
        """See `Registry`."""
        if kind in OWN:
            hint = f"registry.{kind}(...)"
            raise PluginError(f"{kind!r} is a kind of core's own", where=f"plugin {self.plugin}", hint=hint)
        self.announced.add(kind, name, value, self.plugin)

    def lookup(self, kind: str, name: str) -> object:
        """See `Registry`."""
        return self.announced.lookup(kind, name)

    def _target(self, target: str) -> str:
        module, colon, attribute = target.partition(":")
        if not (module and colon and attribute):
            hint = 'write it as "package.module:attribute"'
            raise PluginError(f"{target!r} names no module and attribute", where=f"plugin {self.plugin}", hint=hint)
        return target
