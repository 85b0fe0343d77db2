"""What can be configured, with defaults and bounds. Knows nothing of where a value came from but its name."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator, model_validator

DEFAULT = "default"
"""Origin of a value that nobody set."""


def is_file(entry: str) -> bool:
    """Whether an entry of `enable` is a one-off plugin: the path of a Python file."""
    return entry.endswith(".py")


def named(entry: str) -> str:
    """The plugin's name that an entry of `enable` gives: a file's is that of the file."""
    return pathlib.PurePath(entry).stem if is_file(entry) else entry


class Section(BaseModel):
    """A table of the configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    """[model]: which checkpoint, and how it is held."""

    path: str = Field(default="smollm2", min_length=1)
    """An alias of `byref pull`, a GGUF file, or a folder in the layout of transformers."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type weights are held and computed in; auto takes what suits the device."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    @field_validator("device")
    @classmethod
    def _known(cls, name: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
            raise ValueError(f"is auto, cpu, cuda or cuda:N, not {name!r}")
        return name


class PluginsSection(Section):
    """[plugins]: which plugins run, in order; every `[plugins.<name>]` table is that plugin's own."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Any]]

    enable: tuple[str, ...] = ("models",)
    """Names of the plugins to run; the order counts."""

    @field_validator("enable")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"named twice: {', '.join(twice)}")
        return names

    @property
    def options(self) -> Mapping[str, dict[str, Any]]:
        """Per plugin name its table as it was written: the plugin's own model validates it."""
        return self.__pydantic_extra__


class EngineSection(Section):
    """[engine]: sizes and modes of the engine."""

    max_requests: int = Field(default=64, ge=1)
    """Requests running at once."""
    max_rows: int = Field(default=512, ge=1)
    """Rows of one forward."""
    chunk: int = Field(default_factory=lambda values: values["max_rows"], ge=1)
    """Prompt tokens of one request in one forward; max_rows unless set."""
    max_context: int = Field(default=0, ge=0)
    """Tokens of one request; 0 takes the model's own, capped."""
    kv_tokens: int = Field(default=0, ge=0)
    """Tokens the cache has room for over all requests; 0 derives it."""
    capture: Literal["off", "auto", "tape", "cuda"] = "auto"
    """How forwards are captured and replayed."""
    policy: str = "fifo"
    """Scheduling policy."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Seeds the seeds of requests that bring none; None takes the system's entropy."""
    threads: int = Field(default=0, ge=0)
    """CPU threads; 0 takes torch's choice."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.chunk > self.max_rows:
            raise ValueError(f"chunk ({self.chunk}) may not exceed max_rows ({self.max_rows})")
        if self.max_requests > self.max_rows:
            raise ValueError(f"max_requests ({self.max_requests}) may not exceed max_rows ({self.max_rows})")
        return self


class ServeSection(Section):
    """[serve]: the server that `byref serve` starts."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """The address it listens on: this machine's own, unless told otherwise."""
    port: int = Field(default=8000, ge=0, le=65535)
    """0 takes a free one."""
    model_name: str | None = Field(default=None, min_length=1)
    """What clients call the model; the value of [model] path unless set."""
    chat_template: str | None = None
    """A file with a Jinja template that replaces the model's own."""
    api_keys: tuple[Annotated[SecretStr, Field(min_length=1)], ...] = ()
    """Clients must present one of them; none lets everybody in."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may call the server; "*" is every one."""
    max_body: int = Field(default=4 * 1024 * 1024, ge=1)
    """Bytes of one request's body."""
    queue: int = Field(default=256, ge=0)
    """Requests that may wait besides those that run; further ones are refused with status 429."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds that one request may take, waiting included."""
    grace: float = Field(default=30.0, ge=0)
    """Seconds that requests have to finish once the server is told to stop."""


class Config(Section):
    """The whole configuration. `load_config` makes one and remembers where each value came from."""

    model: ModelSection = ModelSection()
    plugins: PluginsSection = PluginsSection()
    bind: dict[str, str] = Field(default_factory=dict)
    """Spec class or identity -> the plugin whose answer is taken where two answer."""
    engine: EngineSection = EngineSection()
    serve: ServeSection = ServeSection()
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def origin(self, key: str) -> str:
        """Where the value under a dotted key came from: a file, an environment variable, the command line, default."""
        return self._origins.get(key, DEFAULT)

    def remember(self, origins: Mapping[str, str]) -> Self:
        """Keep where values came from, by dotted key."""
        self._origins.update(origins)
        return self

    def items(self) -> Iterator[tuple[str, object, str]]:
        """Every value as (dotted key, value, origin)."""
        for path, value in flatten(self.model_dump()):
            key = ".".join(path)
            yield key, value, self.origin(key)


Path = tuple[str, ...]
"""Names of the tables down to a value. Not a dotted string: keys of `[bind]` hold dots themselves."""


def flatten(table: Mapping[str, Any], prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of nested tables."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*prefix, name))
        else:
            yield (*prefix, name), value
