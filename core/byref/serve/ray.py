"""The same application as a deployment of Ray Serve: replicas with an engine each. Knows Ray; imports it late.

Requests go to the less busy of two replicas, as Ray Serve does it. Its prefix-aware router reads the calls of Ray's own
LLM deployments and not the bodies of HTTP requests: it cannot be had here.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from fastapi import FastAPI

from byref.config import Config
from byref.contract.errors import ConfigError
from byref.serve.app import create
from byref.serve.desk import Desk
from byref.serve.worker import State

NAME = "byref"
_built: list[FastAPI] = []
"""The application of this process, if it is a replica."""


class Replica:
    """One engine; Ray replaces it when it has failed."""

    def check_health(self) -> None:
        """Asked by Ray now and then.

        Raises:
            RuntimeError: the engine has failed.
        """
        desks: list[Desk] = [app.state.desk for app in _built]
        if any(desk.worker.state is State.FAILED for desk in desks):
            raise RuntimeError("the engine has failed; its log says why")


def run(config: Config, replicas: int, listening: Callable[[str], None]) -> None:
    """Serve until a signal comes; then requests have `grace` seconds to end.

    Args:
        config: the whole configuration; its port has to be given, since Ray opens it.
        replicas: how many.
        listening: is told the address.

    Raises:
        ConfigError: port 0.
    """
    if config.serve.port == 0:
        raise ConfigError("Ray Serve takes no free port", where="--port", hint="--port 8000")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody unless the user says so
    import ray
    from ray import serve

    ray.init(include_dashboard=False, ignore_reinit_error=True)
    stop = _on_signal()  # after Ray has set its own
    try:
        serve.start(http_options={"host": config.serve.host, "port": config.serve.port})
        serve.run(_application(config, replicas), name=NAME, route_prefix="/")
        listening(f"http://{config.serve.host}:{config.serve.port}")
        stop.wait()
    finally:
        serve.shutdown()
        ray.shutdown()


def _application(config: Config, replicas: int) -> Any:
    """The deployment, bound."""
    from ray import serve

    def build() -> FastAPI:
        app = create(config)
        _built.append(app)
        return app

    served = config.serve
    options = {
        "name": NAME,
        "num_replicas": replicas,
        "max_ongoing_requests": config.engine.max_requests
        + served.queue
        + 64,  # the rest gets its 429 from the replica
        "graceful_shutdown_timeout_s": served.grace + 5,
        "ray_actor_options": {"num_cpus": 1, "num_gpus": int(_takes_gpu(config))},
    }
    return serve.deployment(**options)(serve.ingress(build)(Replica)).bind()


def _takes_gpu(config: Config) -> bool:
    import torch

    return config.model.device != "cpu" and torch.cuda.is_available()


def _on_signal() -> threading.Event:
    """Set by the first SIGTERM or Ctrl-C; a second one ends the program."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop
