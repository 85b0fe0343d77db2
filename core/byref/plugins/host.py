"""The plugins of one engine: found, loaded, ordered, registered, resolved. Knows no hook's meaning but `register`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from byref.config import Config
from byref.config.model import is_file
from byref.contract.errors import ConfigError, PluginError, RequestError
from byref.contract.explain import nearest, problems, raise_problems
from byref.plugins import loader, order
from byref.plugins.binder import CORE
from byref.plugins.blame import step_error
from byref.plugins.discovery import Found, Installed, pick, providers, scan
from byref.plugins.hooks import Hooks
from byref.plugins.loader import AnyPlugin, Loaded
from byref.plugins.registry import Announced, Registrar
from byref.plugins.resolve import Resolved, resolve


@dataclass(frozen=True, slots=True)
class PluginHost:
    """What is running, in the configuration's order, and what it announced."""

    plugins: tuple[Loaded, ...]
    registry: Announced
    hooks: Hooks
    resolved: Resolved

    @classmethod
    def load(cls, config: Config, classes: Mapping[str, type[AnyPlugin]] | None = None) -> PluginHost:
        """Load the enabled plugins and let them register. Imports no other plugin.

        Args:
            config: names them, in order, and holds their options.
            classes: plugins a program hands over by itself; those not named in `enable` come last.

        Raises:
            PluginError: unknown, not importable, not a plugin, a wrong option, hook, argument or API version, a
                missing requirement, a conflict, a circle: with plugin, distribution, version, cause and next step.
        """
        classes = classes or {}
        installed = scan()
        enabled = [*config.plugins.enable, *(name for name in classes if name not in config.plugins.enable)]
        found = [_find(name, installed, classes) for name in enabled]
        _check_names(config, found, installed)
        plugins = [_load(one, config, classes) for one in found]
        order.check(plugins, {**{name: (name,) for name in installed}, **providers()})
        order.by_requirements(plugins)  # a circle is an error whatever hooks there are
        resolved = resolve(plugins)
        registry = Announced()
        for impl in resolved["register"]:
            try:
                impl.call(Registrar(registry, impl.plugin))
            except Exception as cause:  # a stranger's code
                raise step_error("register", impl, cause) from cause
        registry.sealed = True
        return cls(tuple(plugins), registry, Hooks(resolved), resolved)

    def plugin(self, name: str) -> Loaded:
        """The running plugin called `name`."""
        names = [plugin.name for plugin in self.plugins]
        if name not in names:
            have = ", ".join(names) or "none"
            raise PluginError(
                f"the plugin {name!r} is not enabled", where=f"enabled are: {have}", hint=nearest(name, names)
            )
        return self.plugins[names.index(name)]

    def request_options(self, raw: Mapping[str, object]) -> dict[str, BaseModel]:
        """A request's options, each validated by its plugin's `RequestOptions`.

        Raises:
            RequestError: the plugin is not enabled or takes none, or a field is unknown or wrong.
        """
        return {name: self._request_options(name, table) for name, table in raw.items()}

    def describe(self) -> dict[str, list[str]]:
        """Per hook the names of the plugins that implement it, in the order they are called in."""
        return {hook: [impl.plugin.name for impl in impls] for hook, impls in self.resolved.items()}

    def _request_options(self, name: str, table: object) -> BaseModel:
        where = f"options of the request, plugin {name}"
        try:
            plugin = self.plugin(name)
        except PluginError as cause:
            taking = [one.name for one in self.plugins if type(one.instance).RequestOptions is not None]
            hint = nearest(name, taking) if taking else "send the request without; no enabled plugin takes options"
            raise RequestError(cause.what, where=where, hint=hint) from cause
        model = type(plugin.instance).RequestOptions
        if model is None:
            hint = f"send the request without {name}"
            raise RequestError(f"{name} takes no options per request", where=f"{where} ({plugin.dist})", hint=hint)
        try:
            return model.model_validate(table)
        except ValidationError as error:
            found = list(problems(error, model))
            raise_problems(RequestError, found, lambda p: f"{where}, field {p.field}", error)


def _find(name: str, installed: Installed, classes: Mapping[str, type[AnyPlugin]]) -> Found:
    if name in classes:
        return loader.find_class(name, classes[name])
    return loader.find_file(name) if is_file(name) else pick(installed, name)


def _load(found: Found, config: Config, classes: Mapping[str, type[AnyPlugin]]) -> Loaded:
    given = classes.get(found.name)
    cls = loader.load_class(found) if given is None else loader.check_class(found, given)
    return loader.make(found, cls, config.plugins.options.get(found.name, {}))


def _check_names(config: Config, found: Sequence[Found], installed: Installed) -> None:
    """Names in the configuration that nobody bears are mistakes, and so are names that two bear."""
    names = [one.name for one in found]
    for name in names:
        if name == CORE or names.count(name) > 1:
            what = (
                f"no plugin may be called {name!r}: core is"
                if name == CORE
                else f"two enabled plugins are called {name!r}"
            )
            raise PluginError(what, where="[plugins] enable", hint="rename one of them")
    for name in config.plugins.options:
        if name not in names and name not in installed:
            hint = nearest(name, {*names, *installed})
            raise ConfigError(
                f"options for {name!r}, and there is no such plugin", where=f"[plugins.{name}]", hint=hint
            )
    for spec, name in config.bind.items():
        if name not in (*names, CORE):
            hint = nearest(name, [*names, CORE])
            raise ConfigError(
                f"[bind] gives {spec} to {name!r}, which is not enabled", where=f"[bind] {spec}", hint=hint
            )
