"""The engine as a program uses it: add requests, step, stream. Knows requests and chunks; no tensor."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from byref.config import Config
from byref.contract.errors import ByrefError, EngineStopped, RequestError
from byref.contract.plugin import Plugin
from byref.contract.requests import Reason, Request, SamplingParams
from byref.contract.roles import TARGET
from byref.engine.live import Chunk, Completion, Live
from byref.engine.noise import stream
from byref.engine.plan import Events, Planner
from byref.engine.runner import Runner
from byref.engine.start import Parts, assemble, default_seed
from byref.plugins.host import PluginHost
from byref.text import StopScanner

Prompt = str | Sequence[int]


class Engine:
    """One model and its plugins, serving many requests at once. Not safe to call from several threads."""

    def __init__(self, parts: Parts, config: Config) -> None:
        self.config, self.parts = config, parts
        self.tokenizer = parts.checkpoint.tokenizer()
        self.vocabulary = min(self.tokenizer.size, parts.sizing.role(TARGET).vocabulary)
        self.failure: EngineStopped | None = None
        """Why it stopped, once it has."""
        self._closed = False
        self._boxes: dict[str, deque[Chunk]] = {}
        self._live: dict[str, Live] = {}
        self._ended: list[Chunk] = []
        self._arrivals = itertools.count(1)
        self._seed = default_seed(config.engine.seed)
        events = Events(self._added, parts.host.hooks.request_released, self._failed)
        self._planner = Planner(
            parts.kv,
            parts.speculator,
            parts.policy,
            parts.sizing,
            min(config.engine.chunk, parts.sizing.max_rows),
            events,
        )
        self._runner = Runner(
            self._planner,
            parts.forwards,
            parts.kv,
            parts.speculator,
            parts.host.hooks,
            self._live,
            self.vocabulary,
            parts.sizing.max_context,
        )

    @classmethod
    def start(cls, config: Config | None = None, plugins: Mapping[str, type[Plugin[Any]]] | None = None) -> Self:
        """Load plugins and the model, bind, warm up and capture.

        Args:
            config: the whole configuration.
            plugins: plugins that a program hands over as classes, by name, besides the installed ones it enables.
        """
        config = config or Config()
        host = PluginHost.load(config, plugins)
        try:
            parts = assemble(config, host)
            engine = cls(parts, config)
            parts.forwards.warm_up()
        except BaseException:
            host.hooks.shutdown()
            raise
        return engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what runs and shut the plugins down, once."""
        if self._closed:
            return
        self._closed = True
        if self.failure is None:
            for id in list(self._live):
                self.abort(id)
            self.failure = EngineStopped("the engine was closed")
        self.parts.host.hooks.shutdown()

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs, or has ended unreported."""
        return not self._live and not self._ended

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        id: str | None = None,
        priority: int = 0,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> str:
        """Queue a request and return its id.

        Raises:
            RequestError: an empty prompt, one without room for a token, an id outside the vocabulary or in use,
                or options that a plugin refuses.
            EngineStopped: the engine has stopped.
        """
        if self.failure is not None:
            raise self.failure
        params = params or SamplingParams()
        arrival = next(self._arrivals)
        id = id or f"request-{arrival}"
        ids = self._prompt_ids(prompt, id)
        seed = params.seed if params.seed is not None else stream(self._seed, arrival)
        checked = self.parts.host.request_options(options or {})
        request = Request(id, ids, params, seed, checked, priority, arrival, tokens=list(ids))
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.parts.checkpoint.end_ids)
        self._live[id] = Live(request, self.tokenizer.stream(), StopScanner(params.stop), ends)
        self._planner.waiting.append(request)
        return id

    def step(self) -> list[Chunk]:
        """Run one step; what it added to each request. An error that is not one request's stops the engine, and
        every request ends with it."""
        if self.failure is not None:
            raise self.failure
        try:
            chunks = self._runner.step()
        except Exception as cause:
            chunks = self._stop(cause)
        chunks = self._ended + chunks
        self._ended = []
        for chunk in chunks:
            if chunk.request_id in self._boxes:
                self._boxes[chunk.request_id].append(chunk)
            if chunk.completion is not None:
                self._live.pop(chunk.request_id, None)
        return chunks

    def abort(self, id: str) -> Completion | None:
        """End a request now; None if it is not there (any more)."""
        live = self._live.get(id)
        if live is None:
            return None
        if live.request in self._planner.running:
            chunk = self._runner.finish(live.request, Reason.ABORTED)
        else:
            self._planner.waiting = [request for request in self._planner.waiting if request is not live.request]
            self._ended = [ended for ended in self._ended if ended.request_id != id]
            chunk = Chunk(id, "", (), live.complete(Reason.ABORTED))
        del self._live[id]
        if id in self._boxes:
            self._boxes[id].append(chunk)
        return chunk.completion

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **request: Any) -> Iterator[Chunk]:
        """Chunks of one request as they come; the last carries the completion. Leaving early aborts it.

        Raises:
            RequestError, EngineStopped: what ended it.
        """
        id = self.add(prompt, params, **request)
        try:
            for chunk in self.follow(id):
                if chunk.completion is not None and chunk.completion.error is not None:
                    raise chunk.completion.error
                yield chunk
        finally:
            self.abort(id)

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> list[Completion]:
        """Complete all prompts at once, in their order. A request that failed carries its error."""
        ids: list[str] = []
        try:
            for prompt in prompts:
                ids.append(self.add(prompt, params))  # noqa: PERF401  what was added is aborted if the next is refused
            follows = [self.follow(id) for id in ids]
            return [chunk.completion for follow in follows for chunk in follow if chunk.completion is not None]
        finally:
            for id in ids:
                self.abort(id)

    def follow(self, id: str) -> Iterator[Chunk]:
        """Chunks of a queued request as they come, running steps when there is none. Several may be followed at
        once: what a step brings for the others waits for them."""
        if id not in self._live:
            raise RequestError(f"no request {id!r} is waiting or running")
        box = self._boxes.setdefault(id, deque())
        return self._chunks_of(id, box)

    def _chunks_of(self, id: str, box: deque[Chunk]) -> Iterator[Chunk]:
        try:
            while True:
                while not box:
                    self.step()
                chunk = box.popleft()
                yield chunk
                if chunk.completion is not None:
                    return
        finally:
            self._boxes.pop(id, None)

    def usage(self) -> Mapping[str, int]:
        """Figures of memory and queues; all but capacities are 0 when idle."""
        queues = {"waiting": len(self._planner.waiting), "running": len(self._planner.running)}
        return {**self.parts.kv.usage(), **queues}

    def _prompt_ids(self, prompt: Prompt, id: str) -> tuple[int, ...]:
        if id in self._live:
            raise RequestError(f"the request id {id!r} is in use", hint="leave it out, or take another")
        ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else tuple(prompt)
        if not ids:
            raise RequestError("the prompt is empty", where=f"request {id}", hint="give at least one token")
        bad = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is outside the vocabulary of {self.vocabulary}", where=f"request {id}")
        most = self.parts.sizing.max_context
        if len(ids) >= most:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, and the model has room for {most}, one of them new",
                where=f"request {id}",
                hint=f"shorten it to {most - 1}",
            )
        return ids

    def _added(self, request: Request) -> None:
        self.parts.host.hooks.request_added(request)
        self._live[request.id].start()

    def _failed(self, request: Request, error: RequestError) -> None:
        self._ended.append(Chunk(request.id, "", (), self._live[request.id].complete(Reason.FAILED, error)))

    def _stop(self, cause: Exception) -> list[Chunk]:
        """Every request is answered with the error; the hooks are told of those that run."""
        what = cause.what if isinstance(cause, ByrefError) else f"{type(cause).__name__}: {cause}"
        self.failure = EngineStopped(f"the engine stopped: {what}", hint="see the cause above; start a new engine")
        self.failure.__cause__ = cause
        self._planner.waiting.clear()
        for request in list(self._planner.running):
            try:
                self._planner.release(request, Reason.FAILED)
            except Exception as also:
                cause.add_note(f"and releasing {request.id}: {also}")
        ended = {chunk.request_id for chunk in self._ended}
        waiting = [live for id, live in self._live.items() if id not in ended]
        return [Chunk(live.request.id, "", (), live.complete(Reason.FAILED, self.failure)) for live in waiting]
