"""Runs the application under uvicorn until it is told to stop. Knows signals and exit codes; no endpoint."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from byref.config import Config
from byref.contract.errors import ConfigError
from byref.serve.desk import Desk
from byref.serve.errors import SERVER, ApiError
from byref.serve.worker import State

BACKLOG = 2048
SOON = 1.0
"""Seconds in which answers to what was failed are sent."""


class Server(uvicorn.Server):
    """Told to stop, it takes nothing more, lets what runs end for `grace` seconds and fails the rest.

    Told again, it stops at once.
    """

    def __init__(self, config: uvicorn.Config, desk: Desk) -> None:
        super().__init__(config)
        self._desk = desk

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self.should_exit:
            os._exit(128 + sig)  # without a word to anybody: that is what a second one asks for
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and stop again if the engine does not start."""
        await super().startup(sockets)
        self._watching = asyncio.create_task(self._watch())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for what runs, at most so long."""
        serve = self._desk.config.serve
        late = asyncio.get_running_loop().call_later(serve.grace, self._fail_rest)
        try:
            await super().shutdown(sockets)
        finally:
            late.cancel()
            self._watching.cancel()

    async def _watch(self) -> None:
        await self._desk.worker.settled.wait()
        if self._desk.worker.state is State.FAILED:
            self.should_exit = True

    def _fail_rest(self) -> None:
        error = ApiError("the server is stopping", status=503, type=SERVER, code="stopping")
        self._desk.worker.fail_all(error)


def run(app: FastAPI, config: Config, listening: Callable[[str], None]) -> None:
    """Serve until a signal comes.

    Args:
        app: the application.
        config: the whole configuration.
        listening: is told the address.

    Raises:
        ConfigError: the address cannot be had.
        ByrefError: the engine did not start; the reason.
    """
    serve, desk = config.serve, app.state.desk
    sock = listen(serve.host, serve.port)
    options = uvicorn.Config(
        app,
        host=serve.host,
        port=serve.port,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(serve.grace + 5 + SOON),
    )
    host, port = sock.getsockname()[:2]
    listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    server = Server(options, desk)
    server.run(sockets=[sock])
    if desk.worker.failure is not None and not desk.worker.started:
        raise desk.worker.failure


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)  # from now on nobody is refused: whoever comes early waits
    except OSError as error:
        sock.close()
        hint = "another --port, or --port 0 for a free one"
        raise ConfigError(f"the address cannot be had: {error.strerror}", where=f"{host}:{port}", hint=hint) from error
    return sock
