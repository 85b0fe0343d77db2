"""From plugins to tuples of functions: pluggy parses and checks the implementations, once; nobody calls through it.

Knows hooks by name and order; must not know what any of them means.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from byref.contract import hookspecs
from byref.contract.errors import PluginError
from byref.contract.explain import nearest
from byref.contract.plugin import PROJECT
from byref.plugins.loader import Loaded
from byref.plugins.order import by_requirements

HOOKS = (*hookspecs.SETUP, *hookspecs.REQUEST, *hookspecs.STEP, *hookspecs.DEVICE)
CHAINS = ("register", "refine", "bind", "decorate", "adjust_logits")
"""Called in the configuration's order; every other hook in the order of `requires`."""
BACKWARDS = ("request_released", "shutdown")
"""Called in reverse: who came last lets go first."""


@dataclass(frozen=True, slots=True)
class Impl:
    """One plugin's implementation of one hook, taking exactly the hook's arguments, by position."""

    plugin: Loaded
    call: Callable[..., Any]


Resolved = Mapping[str, tuple[Impl, ...]]
"""Per hook the implementations, in the order they are called in."""


def resolve(plugins: Sequence[Loaded]) -> Resolved:
    """The implementations of every hook.

    Raises:
        PluginError: an unknown hook or argument, a wrapper, an unmarked method with a hook's name, a coroutine.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    for plugin in reversed(plugins):  # pluggy asks the last one first
        _register(manager, plugin)
    by_name = {plugin.name: plugin for plugin in plugins}
    return {name: _ordered(manager, name, by_name) for name in HOOKS}


def _register(manager: pluggy.PluginManager, plugin: Loaded) -> None:
    instance = plugin.instance
    try:
        manager.register(instance, plugin.name)
        manager.check_pending()
    except pluggy.PluginValidationError as cause:
        raise _refused(manager, plugin, cause) from cause
    for name in HOOKS:
        method = getattr(instance, name, None)
        if callable(method) and manager.parse_hookimpl_opts(instance, name) is None:
            raise _broken(plugin, name, "has the name of a hook and is not marked as one", "write @hookimpl above it")


def _refused(manager: pluggy.PluginManager, plugin: Loaded, cause: pluggy.PluginValidationError) -> PluginError:
    callers = manager.get_hookcallers(plugin.instance) or []
    unknown = next((caller.name for caller in callers if not caller.has_spec()), None)
    if unknown is not None:
        return _broken(plugin, unknown, "is no hook of byref", nearest(unknown, HOOKS))
    detail = " ".join(line.strip() for line in str(cause).splitlines()[1:] if line.strip())
    what = f"a hook of {plugin.name} does not match its specification: {detail}"
    return PluginError(what, where=f"plugin {plugin}", hint="take the arguments of byref.contract.hookspecs, or fewer")


def _ordered(manager: pluggy.PluginManager, name: str, by_name: Mapping[str, Loaded]) -> tuple[Impl, ...]:
    caller = getattr(manager.hook, name)
    impls = {impl.plugin_name: impl for impl in reversed(caller.get_hookimpls())}  # tryfirst and trylast applied
    plugins = [by_name[plugin_name] for plugin_name in impls]
    if name not in CHAINS:
        needed = by_requirements([*plugins, *(p for p in by_name.values() if p not in plugins)])
        plugins = [plugin for plugin in needed if plugin.name in impls]
    if name in BACKWARDS:
        plugins.reverse()
    return tuple(
        Impl(plugin, _positional(plugin, name, impls[plugin.name], caller.spec.argnames)) for plugin in plugins
    )


def _positional(plugin: Loaded, name: str, impl: pluggy.HookImpl, arguments: Sequence[str]) -> Callable[..., Any]:
    """The implementation as a function of all of the hook's arguments: itself, wherever it takes them all."""
    if impl.wrapper or impl.hookwrapper:
        raise _broken(plugin, name, "is a wrapper, and hooks have none", "use `decorate` to wrap what a layer calls")
    function: Callable[..., Any] = impl.function
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise _broken(plugin, name, "is a coroutine or generator, which nobody runs", "make it a plain function")
    if tuple(impl.argnames) == tuple(arguments):
        return function
    taken = [(i, arg) for i, arg in enumerate(arguments) if arg in (*impl.argnames, *impl.kwargnames)]

    def pick(*values: object) -> Any:
        return function(**{arg: values[i] for i, arg in taken})

    return pick


def _broken(plugin: Loaded, name: str, what: str, hint: str) -> PluginError:
    return PluginError(f"{plugin.name}.{name} {what}", where=f"plugin {plugin}, hook {name}", hint=hint)
