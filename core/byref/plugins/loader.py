"""From an entry point to a live plugin: import, check, validate options, make one instance. Calls no hook."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from byref.config.model import is_file, named
from byref.contract.errors import PluginError
from byref.contract.explain import problems, raise_problems
from byref.contract.plugin import API_VERSION, Plugin, PluginInfo
from byref.plugins.discovery import Found

AnyPlugin = Plugin[Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """One running plugin and where it comes from."""

    found: Found
    info: PluginInfo
    instance: AnyPlugin

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.found.name

    @property
    def dist(self) -> str:
        """Its distribution."""
        return self.found.dist

    @property
    def version(self) -> str:
        """Its distribution's version."""
        return self.found.version

    def __str__(self) -> str:
        return str(self.found)


def find_file(name: str) -> Found:
    """The one-off plugin in the file `name`."""
    path = Path(name)
    if not path.is_file():
        raise PluginError(f"there is no plugin file {name}", where="[plugins] enable", hint="check the path")
    return Found(named(name), str(path), str(path), "", str(path.resolve().parent))


def find_class(name: str, cls: type[AnyPlugin]) -> Found:
    """A plugin that a program hands over as a class."""
    return Found(name, f"{cls.__module__}:{cls.__qualname__}", "given as a class", "", cls.__module__)


def load_class(found: Found) -> type[AnyPlugin]:
    """Import the plugin's class and check what it declares.

    Raises:
        PluginError: the import failed, it is no `Plugin`, it has no `PluginInfo`, or was written for another API.
    """
    cls = _import_file(found) if is_file(found.value) else _import_entry(found)
    return check_class(found, cls)


def check_class(found: Found, cls: object) -> type[AnyPlugin]:
    """`cls`, if it declares a plugin of this API version."""
    where = f"plugin {found}, entry point {found.value}"
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        kind = "a module" if isinstance(cls, ModuleType) else repr(cls)
        hint = 'name the class: "module:Class", derived from byref.Plugin'
        raise PluginError(f"{found.name} is not a plugin: the entry point gives {kind}", where=where, hint=hint)
    info = getattr(cls, "info", None)
    if not isinstance(info, PluginInfo):
        hint = f"info = PluginInfo(api_version={API_VERSION})"
        raise PluginError(f"{cls.__name__} has no `info` of type PluginInfo", where=where, hint=hint)
    if info.api_version != API_VERSION:
        older = info.api_version < API_VERSION
        hint = f"upgrade {found.dist}" if older else f"upgrade byref, or install an older {found.dist}"
        hint = f"write it for version {API_VERSION}: `byref.API_VERSION`" if found.one_off else hint
        what = f"{found.name} was written for version {info.api_version} of byref's API, which is at {API_VERSION}"
        raise PluginError(what, where=where, hint=hint)
    return cls


def make(found: Found, cls: type[AnyPlugin], table: Mapping[str, Any]) -> Loaded:
    """Validate the plugin's options and make its instance.

    Raises:
        PluginError: an option is unknown or wrong, or the constructor raised.
    """
    try:
        options = cls.Options.model_validate(dict(table))
    except ValidationError as error:
        prefix = f"plugin {found}, [plugins.{found.name}]"
        found_problems = list(problems(error, cls.Options))
        raise_problems(PluginError, found_problems, lambda p: f"{prefix} {p.field}".rstrip(), error)
    try:
        instance = cls(found.name, options)
    except Exception as cause:  # a stranger's constructor
        where = f"plugin {found}, {raised_at(cause)}"
        raise PluginError(f"{found.name} cannot be made: {brief(cause)}", where=where, hint=remedy(found)) from cause
    return Loaded(found, instance.info, instance)


def brief(cause: BaseException) -> str:
    """An exception in one line."""
    text = str(cause)
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def raised_at(cause: BaseException, module: str = "") -> str:
    """The line that raised it; the last one of the package of `module`, where it has been there."""
    package = module.partition(".")[0]
    frames = list(traceback.walk_tb(cause.__traceback__))
    own = [(f, n) for f, n in frames if package and f.f_globals.get("__name__", "").partition(".")[0] == package]
    frame, number = (own or frames)[-1]
    return f"{frame.f_code.co_filename} line {number}"


def remedy(found: Found) -> str:
    """What to do about a plugin that raised something."""
    first = f"correct {found.value}" if found.one_off else f"tell the author of {found.name}"
    return f"{first}, or run without it: -p no:{found.name}; --debug shows the traceback"


def _import_entry(found: Found) -> object:
    module, _, attribute = found.value.partition(":")
    try:
        value: object = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            value = getattr(value, part)
    except (Exception, SystemExit) as cause:  # a stranger's module may do anything when it is imported
        raise _not_importable(found, cause) from cause
    return value


def _import_file(found: Found) -> object:
    name = f"byref_file_plugin_{found.name}"
    spec = importlib.util.spec_from_file_location(name, found.value)
    if spec is None or spec.loader is None:
        raise PluginError(f"{found.value} cannot be imported", where=f"plugin {found}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as cause:  # as above
        raise _not_importable(found, cause) from cause
    classes = [
        c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Plugin) and c.__module__ == name
    ]
    if len(classes) != 1:
        hint = "one class in a file, derived from byref.Plugin"
        what = f"{found.value} defines {len(classes)} plugins, and must define one"
        raise PluginError(what, where=f"plugin {found}", hint=hint)
    return classes[0]


def _not_importable(found: Found, cause: BaseException) -> PluginError:
    where = f"plugin {found}, {raised_at(cause)}" if found.one_off else f"plugin {found}, entry point {found.value}"
    hint = f"{'correct' if found.one_off else 'repair or upgrade'} {found.dist}, or leave it out: -p no:{found.name}"
    return PluginError(f"{found.name} cannot be imported: {brief(cause)}", where=where, hint=hint)
