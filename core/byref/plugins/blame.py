"""Errors of hooks, with the plugin's name on them. Called only after something was raised: costs nothing before."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, TypeVar

from byref.contract.errors import ByrefError, CaptureError, ConfigError, ContextError, ModelError, PluginError
from byref.plugins.loader import Loaded, brief, raised_at, remedy
from byref.plugins.resolve import Impl

E = TypeVar("E", bound=ByrefError)

CORE = __name__.partition(".")[0]
KEPT = (CaptureError, ConfigError, ContextError, ModelError)
"""Errors that say more than `PluginError` does: they keep their class."""


def blame(kind: type[E], hook: str, impl: Impl, cause: Exception) -> E:
    """`cause` as an error of `kind` that names plugin, distribution, version and hook."""
    where = f"plugin {impl.plugin}, hook {hook}"
    if isinstance(cause, ByrefError):
        inner = f"{cause.where}; {where}" if cause.where else where
        return kind(cause.what, where=inner, hint=cause.hint)
    where = f"{where}, {raised_at(cause, type(impl.plugin.instance).__module__)}"
    hint = remedy(impl.plugin.found)
    return kind(f"{impl.plugin.name} failed in {hook}: {brief(cause)}", where=where, hint=hint)


def foreign(plugins: Sequence[Loaded], cause: Exception) -> PluginError | None:
    """An error that no hook raised, as one of the plugin whose code did: what it bound or wrapped. None where
    core's own code raised it."""
    packages = {type(plugin.instance).__module__.partition(".")[0]: plugin for plugin in plugins}
    for frame, _ in reversed(list(traceback.walk_tb(cause.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == CORE:
            return None
        if package in packages:
            found = packages[package].found
            where = f"plugin {found}, {raised_at(cause, package)}"
            return PluginError(f"{found.name} failed: {brief(cause)}", where=where, hint=remedy(found))
    return None


def step_error(hook: str, impl: Impl, cause: Exception) -> ByrefError:
    """The error of a hook that concerns the whole engine."""
    kind = next((kept for kept in KEPT if type(cause) is kept), PluginError)
    return blame(kind, hook, impl, cause)


def broke_contract(hook: str, impl: Impl, what: str, hint: str = "") -> PluginError:
    """A hook returned what it may not return."""
    return PluginError(f"{impl.plugin.name}.{hook} {what}", where=f"plugin {impl.plugin}, hook {hook}", hint=hint)


def raise_first(errors: Sequence[ByrefError]) -> None:
    """Raise the first of several errors, the others as notes on it; nothing where there is none."""
    if not errors:
        return
    first, *others = errors
    for other in others:
        first.add_note(f"and then: {other}")
    raise first


def impl_of(impls: Sequence[Impl], call: Any) -> Impl:
    """Whose function `call` is."""
    return next(impl for impl in impls if impl.call is call)
