"""`byref serve`: an OpenAI-compatible server. Knows its options; the server's own room does the rest."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from byref.cli import options
from byref.contract.errors import ConfigError

if TYPE_CHECKING:
    from byref.config import Config

NEEDED = ("fastapi", "uvicorn", "sse_starlette", "prometheus_client")


def serve(
    model: options.Model = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on; this machine's own unless given.")] = None,
    port: Annotated[int | None, typer.Option(help="8000 unless given; 0 takes a free one.")] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="Clients must present it; may be repeated.", envvar="BYREF_API_KEY")
    ] = None,
    model_name: Annotated[str | None, typer.Option(help="What clients call the model.")] = None,
    chat_template: Annotated[Path | None, typer.Option(help="A Jinja file instead of the model's own.")] = None,
    queue: Annotated[int | None, typer.Option(help="Requests that may wait; further ones get status 429.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds of one request at most.")] = None,
    grace: Annotated[float | None, typer.Option(help="Seconds that requests have to end, told to stop.")] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="Web pages from there may call; repeatable.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Serve as a deployment of Ray Serve.")] = False,
    replicas: Annotated[int, typer.Option(min=1, help="Engines of that deployment.")] = 1,
    device: options.Device = None,
    dtype: options.Dtype = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    set: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API. Ctrl-C or SIGTERM lets requests end; a second one stops at once."""
    _check_extra(ray, replicas)
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "api_keys": api_key or None,
        "model_name": model_name,
        "chat_template": None if chat_template is None else str(chat_template),
        "queue": queue,
        "timeout": timeout,
        "grace": grace,
        "cors_origins": cors_origin or None,
    }
    own = {f"serve.{name}": value for name, value in given.items() if value is not None}
    settings = options.configure(config, plugin, no_plugins, set, own, path=model, device=device, dtype=dtype)
    name = settings.serve.model_name or settings.model.path
    _run(settings, replicas if ray else None, lambda at: print(f"byref: {name} at {at} (loading)", flush=True))


def _run(settings: Config, replicas: int | None, listening: Callable[[str], None]) -> None:
    """Serve alone, or as so many replicas under Ray."""
    if replicas is not None:
        from byref.serve import ray

        return ray.run(settings, replicas, listening)
    from byref.serve.app import create
    from byref.serve.run import run

    return run(create(settings), settings, listening)


def _check_extra(ray: bool, replicas: int) -> None:
    """Refuse what cannot work, before anything is loaded."""
    if replicas > 1 and not ray:
        raise ConfigError("several replicas need Ray", where="--replicas", hint="--ray --replicas N")
    missing = [name for name in (*NEEDED, *(("ray",) if ray else ())) if find_spec(name) is None]
    if missing:
        extra = "ray" if ray else "serve"
        hint = f'in the folder of byref: pip install -c constraints.txt -e ".[{extra}]"'
        raise ConfigError(f"the server needs {', '.join(missing)}", where=f"the extra {extra}", hint=hint)
