"""The engine's thread. Others talk to it by commands, and it answers into the event loop; knows nothing of HTTP.

Between two steps it carries out what is waiting; with nothing to do it sleeps. The event loop never waits for it: every
answer comes as one call into the loop per step.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from byref.contract.errors import ByrefError, EngineStopped
from byref.contract.requests import SamplingParams
from byref.contract.step import StepReport
from byref.engine import Chunk, Engine
from byref.serve.reply import Reply, Update

log = logging.getLogger("byref.serve")
T = TypeVar("T")
Command = Callable[[Engine], None]


class State(enum.Enum):
    """What the thread is doing."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt for the engine."""

    id: str
    prompt: Sequence[int]
    params: SamplingParams
    priority: int = 0
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cache_salt: str | None = None

    def add(self, engine: Engine) -> None:
        """Queue it."""
        engine.add(
            self.prompt,
            self.params,
            id=self.id,
            priority=self.priority,
            options=self.options,
            cache_salt=self.cache_salt,
        )


class Worker:
    """Runs one engine.

    Args:
        start: makes the engine, in the thread.
        report: the figures of the step that has just ended.
    """

    def __init__(self, start: Callable[[], Engine], report: Callable[[], StepReport | None] = lambda: None) -> None:
        self._start, self._report = start, report
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._replies: dict[str, Reply] = {}
        self._thread = threading.Thread(target=self._run, name="byref-engine", daemon=True)
        self._ready: Callable[[Engine], None] = lambda engine: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: Engine | None = None
        self._closing = self._usable = False
        self.state = State.LOADING
        self.failure: BaseException | None = None
        """Why it failed."""
        self.hook_seconds: Mapping[str, float] = {}
        """By plugin: time inside its hooks."""
        self.settled = asyncio.Event()
        """Set once loading has ended, well or badly."""

    @property
    def engine(self) -> Engine:
        """What does not change while it runs: tokenizer, sizes, plugins. An EngineStopped while there is none."""
        if self._engine is None:
            raise EngineStopped("the engine has not started") from self.failure
        return self._engine

    @property
    def started(self) -> bool:
        """Whether there ever was an engine to use."""
        return self._engine is not None and self._usable

    @property
    def replies(self) -> int:
        """Engine requests that are followed."""
        return len(self._replies)

    def run(self, ready: Callable[[Engine], None] = lambda engine: None) -> None:
        """Start the thread; answers go to the loop that this is called in, and so does `ready`, once it is."""
        self._loop, self._ready = asyncio.get_running_loop(), ready
        self._thread.start()

    def submit(self, reply: Reply, jobs: Sequence[Job]) -> None:
        """Queue the jobs of one reply, all or none: the first refusal is the reply's error."""
        for number, job in enumerate(jobs):
            self._replies[job.id] = reply
            reply.expect(job.id, number)
        self._commands.put(lambda engine: self._add(engine, reply, jobs))

    def forget(self, reply: Reply) -> None:
        """End what of a reply still runs; nothing more of it arrives."""
        ids = [id for id in reply.ids if self._replies.pop(id, None) is not None]
        if ids:
            self._commands.put(lambda engine: _abort(engine, ids))

    async def ask(self, question: Callable[[Engine], T]) -> T:
        """What the engine says between two steps."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def command(engine: Engine) -> None:
            try:
                result = question(engine)
            except Exception as error:
                self._call(_fail, answer, error)
            else:
                self._call(_succeed, answer, result)

        self._commands.put(command)
        return await answer

    def fail_all(self, error: Exception) -> None:
        """End every reply with an error."""
        for reply in dict.fromkeys(self._replies.values()):
            reply.put(error)
            self.forget(reply)

    async def close(self) -> None:
        """Stop the thread and the engine."""
        self._closing = True
        self._commands.put(lambda engine: None)
        while self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 0.5)
        self.state = State.CLOSED

    def _run(self) -> None:
        try:
            engine = self._start()
            self.hook_seconds = engine.parts.host.hooks.timed()
        except BaseException as error:
            self._call(self._settle, None, error)
            return
        self._call(self._settle, engine, None)
        try:
            while not self._closing:
                self._turn(engine)
        except BaseException as error:  # a mistake of the engine's own: nobody may wait for ever
            log.critical("the engine's thread failed", exc_info=error)
            self._call(self._failed, error)
        finally:
            engine.close()
            while not self._commands.empty():  # whoever still asks is told that it is closed
                self._commands.get()(engine)

    def _turn(self, engine: Engine) -> None:
        """Carry out what waits, then one step; sleep where there is neither."""
        resting = engine.idle or engine.failure is not None
        while resting or not self._commands.empty():
            self._commands.get()(engine)
            resting = False
        if engine.failure is not None or engine.idle or self._closing:
            return
        chunks = engine.step()
        self._note_failure(engine.failure)
        self._call(self._deliver, chunks, self._report())

    def _note_failure(self, failure: EngineStopped | None) -> None:
        if failure is not None:
            log.critical("the engine has stopped", exc_info=failure)
            self._call(self._failed, failure)

    def _add(self, engine: Engine, reply: Reply, jobs: Sequence[Job]) -> None:
        added: list[str] = []
        try:
            for job in jobs:
                job.add(engine)
                added.append(job.id)
        except Exception as error:  # also a mistake of ours: this reply's, and nobody else's
            _abort(engine, added)
            self._call(reply.put, error)
        else:
            self._call(reply.accept)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call it."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self._closing = True

    def _settle(self, engine: Engine | None, error: BaseException | None) -> None:
        self._engine, self.failure = engine, error
        if engine is not None:
            try:
                self._ready(engine)
            except Exception as cause:  # what was to be done with it: it is of no use
                self.failure = cause
        self._usable = self.failure is None
        self.state = State.READY if self._usable else State.FAILED
        self.settled.set()

    def _failed(self, error: BaseException) -> None:
        self.state, self.failure = State.FAILED, error
        if not isinstance(error, ByrefError):
            self.fail_all(EngineStopped("the engine's thread failed"))

    def _deliver(self, chunks: Sequence[Chunk], report: StepReport | None) -> None:
        for chunk in chunks:
            reply = self._replies.get(chunk.request_id)
            if reply is not None:
                if chunk.completion is not None:
                    del self._replies[chunk.request_id]
                reply.put(Update(reply.number(chunk.request_id), chunk, report))


def _abort(engine: Engine, ids: Sequence[str]) -> None:
    for id in ids:
        engine.abort(id)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)
