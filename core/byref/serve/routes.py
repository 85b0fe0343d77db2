"""Routes of plugins, each under its plugin's own prefix. Knows prefixes; nothing of what answers there."""

from __future__ import annotations

from fastapi import FastAPI

from byref.contract.errors import PluginError
from byref.plugins.host import PluginHost
from byref.plugins.registry import ROUTE


def paths(host: PluginHost, plugin: str) -> list[str]:
    """Where a plugin answers."""
    registry = host.registry
    return sorted(path for path in registry.routes if registry.owner(ROUTE, path).name == plugin)


def mount(app: FastAPI, host: PluginHost) -> None:
    """Let every plugin's applications answer.

    Raises:
        PluginError: one cannot be made.
    """
    for path, make in host.registry.routes.items():
        try:
            made = make()
        except Exception as cause:  # a stranger's code
            where = f"plugin {host.registry.owner(ROUTE, path)}"
            raise PluginError(f"the route {path} cannot be made: {cause}", where=where) from cause
        app.mount(path, made)
