"""A server on a tiny model, in a thread of this process, and clients for it."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import openai
import uvicorn
from engines import SIZES

from byref.config import Config
from byref.engine import Engine
from byref.serve.app import create
from byref.serve.desk import Desk
from byref.serve.run import Server, listen
from byref.serve.worker import State

PATIENCE = 60.0
"""Seconds after which something hangs."""


@dataclass
class Answered:
    """One HTTP answer."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> dict:
        """The error, in the one shape."""
        assert set(self.body) == {"error"}, self.body
        assert set(self.body["error"]) == {"message", "type", "param", "code"}
        return self.body["error"]


@dataclass
class Served:
    """A running server."""

    desk: Desk
    server: Server
    port: int
    model: str
    key: str = "none"
    thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> Engine:
        return self.desk.worker.engine

    def client(self, **more) -> openai.OpenAI:
        settings = {"base_url": f"{self.url}/v1", "api_key": self.key, "max_retries": 0, "timeout": PATIENCE}
        return openai.OpenAI(**(settings | more))

    def ask(self, path: str, body: Any = None, *, raw: bytes | None = None, headers: Mapping | None = None) -> Answered:
        """POST a body (or bytes as they are), or GET; whatever the status."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return Answered(answer.status, _parsed(answer), _headers(answer))
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, _parsed(error), _headers(error))

    def complete(self, prompt: Any = "abc", **fields) -> Answered:
        return self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 4, **fields})

    def chat(self, text: str = "hello", **fields) -> Answered:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
        return self.ask("/v1/chat/completions", body)

    def figures(self) -> dict[str, float]:
        """What `/metrics` says."""
        lines = [line for line in self.ask("/metrics").body.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def until(self, condition) -> None:
        """Wait for what the event loop or the engine is about to do."""
        stop = threading.Event()
        for _ in range(int(PATIENCE / 0.01)):
            if condition():
                return
            stop.wait(0.01)
        raise AssertionError("it never came")

    def assert_idle(self) -> None:
        """Nothing is open, nobody holds a place, and the engine holds nothing."""
        self.until(lambda: not self.desk.open and not self.desk.worker.replies and self.engine.idle)
        assert self.desk.admission.taken == 0
        usage = {name: n for name, n in self.engine.usage().items() if not name.startswith("capacity") and n}
        assert usage == {}


def _parsed(answer) -> Any:
    content = answer.read()
    is_json = answer.headers.get("Content-Type", "").startswith("application/json")
    return json.loads(content, parse_constant=_refuse) if is_json else content.decode()


def _headers(answer) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items()}


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} in an answer")


@contextlib.contextmanager
def serving(
    model: Any, plugins: Mapping | None = None, options: Mapping | None = None, engine: Mapping | None = None, **serve
) -> Iterator[Served]:
    """Serve `model` in fp32; `serve` are values of [serve], `engine` of [engine], `options` tables of plugins."""
    tables = {
        "model": {"path": str(model), "dtype": "float32", "device": "cpu"},
        "engine": SIZES | dict(engine or {}),
        "plugins": {"enable": ["models"], **(options or {})},
        "serve": {"model_name": "tiny", "port": 0, "grace": 5.0, **serve},
    }
    config = Config.model_validate(tables)
    app = create(config, plugins)
    sock = listen("127.0.0.1", 0)
    server = Server(uvicorn.Config(app, log_level="warning", lifespan="on"), app.state.desk)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    key = config.serve.api_keys[0].get_secret_value() if config.serve.api_keys else "none"
    served = Served(app.state.desk, server, sock.getsockname()[1], "tiny", key, thread)
    try:
        served.until(lambda: served.desk.worker.state is not State.LOADING)
        if served.desk.worker.state is State.FAILED:
            raise served.desk.worker.failure
        yield served
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server does not stop"


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with listen("127.0.0.1", 0) as sock:
        return int(sock.getsockname()[1])
