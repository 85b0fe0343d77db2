"""The FastAPI application: routes, middleware, the worker's life. Knows every file of this room."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse

from byref.config import Config
from byref.contract.errors import ConfigError
from byref.contract.plugin import Plugin
from byref.engine import Engine
from byref.plugins.discovery import version_of
from byref.serve import chat, completions, errors, info, routes
from byref.serve.access import ApiKeys
from byref.serve.answers import ErrorAnswer
from byref.serve.desk import Desk
from byref.serve.limits import BodyLimit
from byref.serve.metrics import Metrics
from byref.serve.watch import Watch
from byref.serve.worker import State, Worker

PAGE = Path(__file__).parent / "page"
FILES = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
POLICY = {"Content-Security-Policy": "default-src 'self'", "X-Content-Type-Options": "nosniff"}
"""The page loads nothing from elsewhere, and runs nothing that an answer may hold."""
REFUSALS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorAnswer} for status in ("4XX", "5XX")}


def create(config: Config, plugins: Mapping[str, type[Plugin[Any]]] | None = None) -> FastAPI:
    """The application for one engine, which starts with it and loads in a thread of its own.

    Args:
        config: the whole configuration.
        plugins: plugins that a program hands over as classes, by name.

    Raises:
        ConfigError: the chat template cannot be read.
    """
    template = _template(config)
    metrics = Metrics()
    watch = Watch(metrics.step, metrics.preemptions.inc)

    def start() -> Engine:
        engine = Engine.start(config, {**(plugins or {}), **watch.plugins()})
        if template is not None:
            engine.tokenizer.use_template(template, str(config.serve.chat_template))
        engine.claim()
        return engine

    worker = Worker(start, lambda: watch.last)
    version = version_of("byref") or "unknown"
    app = FastAPI(title="byref", version=version, lifespan=_lifespan, responses=REFUSALS, redoc_url=None)
    app.state.desk = Desk(config, worker, metrics)
    errors.install(app)
    for room in (completions, chat, info):
        app.include_router(room.router)
    _serve_page(app)
    _surround(app, config)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The worker's thread lives as long as the application; routes of plugins are added once they are loaded."""
    desk: Desk = app.state.desk
    desk.worker.run(lambda engine: routes.mount(app, engine.parts.host))
    yield
    await desk.worker.close()


def _surround(app: FastAPI, config: Config) -> None:
    """What every request passes, the last one added first."""
    serve = config.serve
    app.add_middleware(BodyLimit, most=serve.max_body)
    if serve.api_keys:
        app.add_middleware(ApiKeys, keys=serve.api_keys)
    if serve.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(serve.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )


def _serve_page(app: FastAPI) -> None:
    """The chat page, and the two files that it loads."""
    for path, name in FILES.items():
        app.add_api_route(path, _file(name), include_in_schema=False)


def _file(name: str) -> Any:
    async def send() -> FileResponse:
        return FileResponse(PAGE / name, headers=POLICY)

    return send


def _template(config: Config) -> str | None:
    path = config.serve.chat_template
    try:
        return None if path is None else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        where = f"[serve] chat_template = {path}"
        raise ConfigError(f"the chat template cannot be read: {error}", where=where) from error


__all__ = ["State", "create"]
