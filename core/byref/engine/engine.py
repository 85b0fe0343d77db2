"""The engine as a program uses it: add requests, step, stream. Knows requests and chunks; no tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from byref.config import Config
from byref.contract.errors import ByrefError, EngineStopped, RequestError
from byref.contract.plugin import Plugin
from byref.contract.requests import Reason, Request
from byref.contract.roles import TARGET
from byref.engine.device import claim
from byref.engine.intake import Intake, Params, Prompt, choice_id, parse_params
from byref.engine.interrupt import deferred
from byref.engine.live import Chunk, Completion, Live
from byref.engine.plan import Events, Planner
from byref.engine.processors import processors
from byref.engine.runner import Runner
from byref.engine.start import Parts, assemble, default_seed
from byref.plugins.blame import foreign
from byref.plugins.host import PluginHost
from byref.text import StopScanner

__all__ = ["Engine", "Prompt"]


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
        self._groups: dict[str, dict[int, Completion]] = {}
        """By id of a request with several choices: those that have ended."""
        self._intake = Intake(
            self.tokenizer,
            self.vocabulary,
            parts.checkpoint.end_ids,
            parts.sizing.max_context,
            parts.kv,
            default_seed(config.engine.seed),
        )
        events = Events(self._added, self._forked, parts.host.hooks.request_released, self._failed)
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
        except BaseException as cause:
            host.hooks.shutdown()
            theirs = None if not isinstance(cause, Exception) else _explained(host, cause)
            if theirs is None or theirs is cause:
                raise
            raise theirs from cause
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

    def claim(self) -> None:
        """Take all memory that states have announced, which a CPU's system gives as it is first written: what runs for
        long then needs no more with use, and finds out at its start if there is too little."""
        states = {id(state): state for unit in self.parts.units for state in unit.states.values()}
        claim(buffer for state in states.values() for buffer in state.buffers().values())

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs, or has ended unreported."""
        return not self._live and not self._ended

    def add(
        self,
        prompt: Prompt,
        params: Params | None = None,
        *,
        id: str | None = None,
        priority: int = 0,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        cache_salt: str | None = None,
    ) -> str:
        """Queue a request and return its id. With n > 1 its chunks say which choice they add to, and the last chunk
        of all carries the completions of all.

        Args:
            prompt: a text, or token ids.
            params: how tokens are chosen, or a table of that by name.
            id: taken from a counter unless given.
            priority: less is earlier, under the policy `priority`.
            options: of this request, by plugin.
            cache_salt: prefixes are shared only between requests of equal salt.

        Raises:
            RequestError: an empty prompt, one without room for a token, an id outside the vocabulary or in use, a
                request that never fits the cache, wrong parameters, or options that a plugin refuses.
            EngineStopped: the engine has stopped.
        """
        if self.failure is not None:
            raise self.failure
        params = parse_params(params)
        checked = self.parts.host.request_options(options or {})
        first, *others = self._intake.requests(prompt, params, id, priority, checked, cache_salt)
        for request in (first, *others):
            if request.id in self._live:
                raise RequestError(f"the request id {request.id!r} is in use", hint="leave it out, or take another")
        for choice, request in enumerate((first, *others)):
            self._live[request.id] = self._follow(request, first.id, choice)
        if others:
            self._groups[first.id] = {}
        self._planner.queue(first, others)
        return first.id

    def step(self) -> list[Chunk]:
        """Run one step; what it added to each request. An error that is not one request's stops the engine, and
        every request ends with it. An interrupt waits for the end of the step, which would leave no state at all."""
        if self.failure is not None:
            raise self.failure
        with deferred():
            try:
                chunks = self._runner.step()
            except Exception as cause:
                chunks = self._stop(cause)
            ended, self._ended = self._ended, []
            return [self._out(chunk) for chunk in (*ended, *chunks)]

    def abort(self, id: str) -> Completion | None:
        """End a request now, with all its choices; None if it is not there (any more)."""
        ended = [chunk for chunk in self._ended if chunk.request_id == id]
        self._ended = [chunk for chunk in self._ended if chunk.request_id != id]
        over = {chunk.choice for chunk in ended}
        for live in [live for live in self._live.values() if live.group == id and live.choice not in over]:
            if live.request in self._planner.running:
                ended.append(self._runner.finish(live.request, Reason.ABORTED))
            else:
                self._planner.forget(live.request)
                ended.append(live.chunk("", (), live.complete(Reason.ABORTED)))
        chunks = [self._out(chunk) for chunk in ended]
        return chunks[-1].completion if chunks else None

    def stream(self, prompt: Prompt, params: Params | None = None, **request: Any) -> Iterator[Chunk]:
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

    def generate(self, prompts: Sequence[Prompt], params: Params | None = None) -> list[Completion]:
        """Complete all prompts at once, in their order. A request that failed carries its error."""
        ids: list[str] = []
        try:
            for prompt in prompts:
                ids.append(self.add(prompt, params))  # noqa: PERF401  what was added is aborted if the next is refused
            done = {chunk.request_id: chunk.completion for chunk in self.follow(*ids) if chunk.completion is not None}
            return [done[id] for id in ids]
        finally:
            for id in ids:
                self.abort(id)

    def follow(self, *ids: str) -> Iterator[Chunk]:
        """Chunks of queued requests, in the order they come, running steps while there is none. Several iterators may
        be open at once: what a step brings for the others waits for them."""
        for id in ids:
            if id not in self._live and id not in self._groups:
                raise RequestError(f"no request {id!r} is waiting or running")
            self._boxes.setdefault(id, deque())
        return self._chunks_of(ids)

    def _chunks_of(self, ids: Sequence[str]) -> Iterator[Chunk]:
        going = dict.fromkeys(ids)
        try:
            while going:
                come = [self._boxes[id].popleft() for id in going for _ in range(len(self._boxes[id]))]
                for chunk in come:
                    if chunk.completion is not None:
                        del going[chunk.request_id]
                    yield chunk
                if not come:
                    self.step()
        finally:
            for id in ids:
                self._boxes.pop(id, None)

    def usage(self) -> Mapping[str, int]:
        """Figures of memory and queues; all but capacities are 0 when idle."""
        queues = {"waiting": self._planner.queued, "running": len(self._planner.running)}
        return {**self.parts.kv.usage(), **queues}

    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """What each plugin that counts has counted, by its name."""
        counted = {loaded.name: loaded.instance.figures() for loaded in self.parts.host.plugins}
        return {name: figures for name, figures in counted.items() if figures}

    def _follow(self, request: Request, group: str, choice: int) -> Live:
        params, ends = request.params, self._intake.ends(request.params)
        stops = StopScanner(params.stop)
        return Live(request, self.tokenizer.stream(), stops, ends, processors(params, ends), group, choice)

    def _out(self, chunk: Chunk) -> Chunk:
        """A chunk on its way out, to whoever follows its request too."""
        if chunk.completion is not None:
            chunk = self._gathered(chunk, chunk.completion)
        if chunk.request_id in self._boxes:
            self._boxes[chunk.request_id].append(chunk)
        return chunk

    def _gathered(self, chunk: Chunk, done: Completion) -> Chunk:
        """Of several choices, the last to end carries the completions of all."""
        id = chunk.request_id
        del self._live[choice_id(id, done.choice)]
        if id not in self._groups:
            return chunk
        group = self._groups[id]
        group[done.choice] = done
        if len(group) < done.n:
            return replace(chunk, completion=None)
        first, *others = (group[choice] for choice in sorted(self._groups.pop(id)))
        return replace(chunk, completion=replace(first, others=tuple(others)))

    def _added(self, request: Request) -> None:
        self.parts.host.hooks.request_added(request)
        self._live[request.id].start()

    def _forked(self, parent: Request, child: Request) -> None:
        """The child starts where the parent stands, its prompt's scores included."""
        self.parts.host.hooks.request_forked(parent, child)
        live = self._live[child.id]
        live.prompt_logprobs = dict(self._live[parent.id].prompt_logprobs)
        live.start()

    def _failed(self, request: Request, error: RequestError) -> None:
        live = self._live[request.id]
        self._ended.append(live.chunk("", (), live.complete(live.fail(error))))

    def _stop(self, cause: Exception) -> list[Chunk]:
        """Every request is answered with the error; the hooks are told of those that run."""
        known = _explained(self.parts.host, cause)
        what = f"{type(cause).__name__}: {cause}" if known is None else known.what
        where, hint = ("", "") if known is None else (known.where, known.hint)
        hint = hint or "start a new engine; the error's cause has the traceback"
        self.failure = EngineStopped(f"the engine stopped: {what}", where=where, hint=hint)
        self.failure.__cause__ = cause
        self._planner.waiting.clear()
        self._planner.choices.clear()
        for request in list(self._planner.running):
            try:
                self._planner.release(request, Reason.FAILED)
            except Exception as also:
                cause.add_note(f"and releasing {request.id}: {also}")
        ended = {(chunk.request_id, chunk.choice) for chunk in self._ended}
        waiting = [live for live in self._live.values() if (live.group, live.choice) not in ended]
        return [live.chunk("", (), live.complete(live.fail(self.failure))) for live in waiting]


def _explained(host: PluginHost, cause: Exception) -> ByrefError | None:
    """What a user may read about an error: itself where it is one of ours, else one of the plugin that raised it."""
    return cause if isinstance(cause, ByrefError) else foreign(host.plugins, cause)
