"""Who needs whom: requirements, conflicts, and an order that respects both them and the configuration's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from byref.contract.errors import PluginError
from byref.contract.roles import KV_POOLS, KV_REWIND
from byref.plugins.loader import Loaded

CORE = frozenset({KV_REWIND, KV_POOLS})
"""What core's own defaults provide."""


def check(plugins: Sequence[Loaded], installed: Mapping[str, Sequence[str]]) -> None:
    """Check requirements and conflicts.

    Args:
        plugins: the enabled ones.
        installed: per capability, and per plugin's name, the installed plugins that would provide it.

    Raises:
        PluginError: naming both sides of a conflict, or what is missing and who would provide it.
    """
    for plugin in plugins:
        for needed in plugin.info.requires:
            if needed not in CORE and not any(_answers(other, needed) for other in plugins):
                raise _missing(plugin, needed, installed.get(needed, ()))
        for other in plugins:
            clash = next(
                (name for name in plugin.info.conflicts if other is not plugin and _answers(other, name)), None
            )
            if clash is not None:
                what = f"{plugin.name} and {other.name} cannot run together: {plugin.name} conflicts with {clash}"
                raise PluginError(what, where=f"plugins {plugin} and {other}", hint="disable one of the two")


def by_requirements(plugins: Sequence[Loaded]) -> list[Loaded]:
    """`plugins` with each after those it requires, otherwise in the order given.

    Raises:
        PluginError: a cycle, named in full.
    """
    done: list[Loaded] = []

    def visit(plugin: Loaded, path: tuple[Loaded, ...]) -> None:
        if plugin in path:
            circle = " requires ".join(p.name for p in (*path[path.index(plugin) :], plugin))
            raise PluginError(f"plugins require each other in a circle: {circle}", hint="disable one of them")
        if plugin not in done:
            for other in plugins:
                if other is not plugin and any(_answers(other, needed) for needed in plugin.info.requires):
                    visit(other, (*path, plugin))
            done.append(plugin)

    for plugin in plugins:
        visit(plugin, ())
    return done


def _answers(plugin: Loaded, needed: str) -> bool:
    return needed == plugin.name or needed in plugin.info.provides


def _missing(plugin: Loaded, needed: str, would: Sequence[str]) -> PluginError:
    hint = f"enable {' or '.join(would)}" if would else f"install a plugin that provides {needed}, and enable it"
    what = f"{plugin.name} requires {needed}, and no enabled plugin provides it"
    return PluginError(what, where=f"plugin {plugin}", hint=hint)
