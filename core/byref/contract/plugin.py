"""How a plugin declares itself. Knows names and classes, never an instance of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import pluggy
from pydantic import BaseModel, ConfigDict

PROJECT: Final = "byref"
API_VERSION: Final = 1
"""Version of `hookspecs`, `specs` and `roles`. A plugin states the one it was written for."""

hookimpl: Final = pluggy.HookimplMarker(PROJECT)

O = TypeVar("O", bound=BaseModel)  # the type of a plugin's options


class NoOptions(BaseModel):
    """A plugin without options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What core checks before it calls any hook."""

    api_version: int
    provides: tuple[str, ...] = ()
    """Capabilities, e.g. `kv.rewind`. Core's defaults provide those of `roles.py`."""
    requires: tuple[str, ...] = ()
    """Capabilities or plugin names that must be enabled; their states are made and refilled first."""
    conflicts: tuple[str, ...] = ()
    """Capabilities or plugin names it cannot run with."""
    lossless: bool = True
    """Whether output equals that of an engine without it."""


class Plugin(Generic[O]):
    """Base of every plugin. The entry point names the subclass; core makes one instance per engine.

    Example:
        class Options(BaseModel):
            model_config = ConfigDict(extra="forbid", frozen=True)
            size: int = 4

        class Mine(Plugin[Options]):
            info = PluginInfo(api_version=1)
            Options = Options

            @hookimpl
            def step_done(self, report): ...
    """

    info: PluginInfo
    """The class's. An instance whose options cost exactness replaces its own: `lossless=False`."""
    Options: ClassVar[type[BaseModel]] = NoOptions
    """Model of `[plugins.<name>]`."""
    RequestOptions: ClassVar[type[BaseModel] | None] = None
    """Model of a request's `plugins: {<name>: ...}`; None refuses any."""

    def __init__(self, name: str, options: O) -> None:
        self.name = name
        self.options = options

    def figures(self) -> Mapping[str, float]:
        """What it has counted since the start, by name, for whoever watches the engine."""
        return {}


@dataclass(frozen=True, slots=True)
class RoleSource:
    """Where a further role's model comes from."""

    path: str | None = None
    """A checkpoint; None is the target's own."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace the configuration's, e.g. {"num_hidden_layers": 2}."""
    architecture: str | None = None
    """Replaces the checkpoint's architecture, e.g. with a draft head's; `{}` in it stands for the checkpoint's own, as
    in `{}.mtp`."""
    same_vocabulary: bool = False
    """Whether its token ids must be the target's: checked at the start, by size and content."""


class Registry(Protocol):
    """What `register` may announce. A name taken twice is an error that names both plugins."""

    def model(self, architecture: str, target: str) -> None:
        """An architecture (as in the checkpoint's `architectures`), and the `module:attribute` of its class."""

    def role(self, name: str, source: RoleSource) -> None:
        """A further model beside the target, run through `forward(name, ...)`."""

    def drafts(self, most: int) -> None:
        """Windows may hold so many drafts; the largest announcement sizes the engine."""

    def policy(self, name: str, make: Callable[[], Any]) -> None:
        """A scheduling policy, chosen by `[engine] policy`."""

    def command(self, name: str, target: str) -> None:
        """A `byref <name>` command: the `module:attribute` of a typer app or function."""

    def route(self, path: str, make: Callable[[], Any]) -> None:
        """An ASGI application that `byref serve` answers with under `/plugins/<plugin>/<path>`: a FastAPI one, say.

        `make` is called once, after the engine has started. What it makes runs in the server's event loop: it
        may read what hooks, which run in the engine's thread, leave for it.
        """

    def register(self, kind: str, name: str, value: object) -> None:
        """Anything of a kind that another plugin looks up, e.g. drafters: `lookup(kind, name)`."""

    def lookup(self, kind: str, name: str) -> object:
        """What was registered; an error that lists the known names, otherwise."""
