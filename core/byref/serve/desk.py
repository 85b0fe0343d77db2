"""Where an HTTP request becomes engine requests and comes back: ids, places, time-outs. Knows no endpoint."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from byref.config import Config
from byref.contract.errors import RequestError
from byref.contract.requests import SamplingParams
from byref.engine import Engine
from byref.serve.errors import SERVER, UNKNOWN, ApiError, told
from byref.serve.limits import Admission, Place
from byref.serve.metrics import Metrics
from byref.serve.reply import Reply, Update
from byref.serve.schemas import Sampling
from byref.serve.worker import Job, State, Worker

CACHE_SALT = "cache_salt"


@dataclass(slots=True)
class Ask:
    """What an HTTP request asks of the engine."""

    body: Sampling
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By plugin, besides those that the body names."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the engine calls something -> what the client does."""


@dataclass(slots=True)
class Open:
    """An HTTP request that the engine has taken."""

    desk: Desk
    id: str
    ask: Ask
    endpoint: str
    place: Place
    reply: Reply
    since: float = field(default_factory=time.time)
    outcome: str = "disconnected"

    def close(self) -> None:
        """End what still runs of it, and let others have its place; may be called again."""
        if self.desk.open.pop(self.id, None) is not None:
            self.desk.worker.forget(self.reply)
            self.place.give_back()
            self.desk.metrics.requests.labels(self.endpoint, self.outcome).inc()

    def failed(self, error: Exception) -> ApiError:
        """What the client is told, and what is counted."""
        self.outcome = "timeout" if isinstance(error, TimeoutError) else "error"
        if isinstance(error, TimeoutError):
            what = f"the request took more than {self.desk.config.serve.timeout:g} s"
            return ApiError(what, status=504, type=SERVER, code="timeout")
        return renamed(told(error), self.ask.names)

    async def updates(self) -> AsyncIterator[Update]:
        """What the engine says, until everything has ended.

        Raises:
            ApiError: what a client is told of an error, a time-out included.
        """
        try:
            async for update in self.reply.updates():
                if update.chunk.completion is not None:
                    for done in update.chunk.completion.choices:
                        self.desk.metrics.completed(done)
                yield update
        except Exception as error:
            raise self.failed(error) from error
        self.outcome = "completed"


class Desk:
    """Takes requests in for one worker.

    Args:
        config: the whole configuration.
        worker: runs the engine.
        metrics: counts.
    """

    def __init__(self, config: Config, worker: Worker, metrics: Metrics) -> None:
        self.config, self.worker, self.metrics = config, worker, metrics
        self.admission = Admission(config.engine.max_requests, config.serve.queue)
        self.open: dict[str, Open] = {}
        """By the id that the client knows."""
        self.started = int(time.time())

    @property
    def model(self) -> str:
        """What clients call the model."""
        return self.config.serve.model_name or self.config.model.path

    @property
    def engine(self) -> Engine:
        """The engine, ready.

        Raises:
            ApiError: it is still loading, or has stopped.
        """
        if self.worker.state is State.LOADING:
            what = "the model is loading"
            raise ApiError(what, status=503, type=SERVER, code="loading", headers={"Retry-After": "1"})
        if self.worker.state is not State.READY:
            raise told(self.worker.engine.failure or RuntimeError("the engine is closed"))
        return self.worker.engine

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served."""
        if name is not None and name != self.model:
            what = f"the model {name!r} is not served here; {self.model!r} is"
            raise ApiError(what, status=404, type=UNKNOWN, param="model", code="model_not_found")

    def params(self, given: Mapping[str, Any]) -> SamplingParams:
        """The engine's parameters of what a client gave.

        Raises:
            ApiError: they do not fit together; the field is named.
        """
        try:
            return SamplingParams.model_validate(dict(given), context=lambda field: f"request, field {field}")
        except RequestError as error:
            raise ApiError(error.what, param=next((n for n in given if error.what.startswith(n)), None)) from error

    async def take(self, request: Request, ask: Ask, endpoint: str, prefix: str) -> Open:
        """Have the engine take a request; whoever opens it closes it.

        Raises:
            ApiError: it is refused, for whatever reason.
        """
        body = ask.body
        id = body.request_id or f"{prefix}-{uuid.uuid4().hex}"
        weight = len(ask.prompts) * ask.params.n
        try:
            self._check_id(id)
            place = self.admission.take(weight, "n" if ask.params.n > 1 else "prompt")
        except ApiError:
            self.metrics.requests.labels(endpoint, "refused").inc()
            raise
        opened = self.open[id] = Open(self, id, ask, endpoint, place, Reply(self.config.serve.timeout))
        try:
            self.worker.submit(opened.reply, self._jobs(ask))
            await opened.reply.accepted()
        except Exception as error:
            refusal = opened.failed(error)
            opened.outcome = "refused" if refusal.status < 500 else opened.outcome
            opened.close()
            raise refusal from error
        except BaseException:
            opened.close()
            raise
        return opened

    def abort(self, id: str) -> bool:
        """End a request for somebody else; whether it was there."""
        opened = self.open.get(id)
        if opened is None:
            return False
        opened.reply.put(ApiError("the request was aborted", status=409, code="aborted"))
        self.worker.forget(opened.reply)
        return True

    def _check_id(self, id: str) -> None:
        if id in self.open:
            raise ApiError(f"the request id {id!r} is in use", status=409, param="request_id", code="id_in_use")

    def _jobs(self, ask: Ask) -> list[Job]:
        """Engine requests with ids of our own: what clients call theirs may collide with nothing."""
        options = {**{name: dict(table) for name, table in ask.body.plugins.items()}, **ask.options}
        return [
            Job(uuid.uuid4().hex, prompt, ask.params, ask.body.priority, options, ask.body.cache_salt)
            for prompt in ask.prompts
        ]


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """An error that names a field as the client does."""
    for ours, theirs in names.items():
        if error.param is not None and (error.param == ours or error.param.startswith(f"{ours}.")):
            error.param = theirs
    return error


async def unless_gone(request: Request, opened: Open) -> list[Update]:
    """Every update of a request, unless its client leaves: then it is closed, and nobody is answered."""

    async def collect() -> list[Update]:
        return [update async for update in opened.updates()]

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    answer, left = asyncio.create_task(collect()), asyncio.create_task(leave())
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ApiError("the client is gone", status=499, code="disconnected")
    finally:
        for task in (answer, left):
            task.cancel()
        await asyncio.gather(answer, left, return_exceptions=True)
        opened.close()
