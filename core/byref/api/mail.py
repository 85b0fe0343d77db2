"""Delivers the chunks of each step to whoever waits for them. Knows request ids; no prompt and no text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from byref.api.interrupt import deferred
from byref.contract.errors import RequestError
from byref.contract.requests import SamplingParams
from byref.engine import Chunk, Engine
from byref.engine.engine import Prompt


class Mail:
    """Lets several iterators share one engine: a step that one of them runs makes chunks for all.

    Args:
        engine: nobody else may step it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._boxes: dict[str, deque[Chunk]] = {}

    def open(self, prompt: Prompt, params: SamplingParams, **request: Any) -> str:
        """Queue a request and return its id. Errors as for `Engine.add`."""
        id = self._engine.add(prompt, params, **request)
        self._boxes[id] = deque()
        return id

    def chunks(self, ids: Iterable[str]) -> Iterator[Chunk]:
        """Chunks of these requests, in the order they came, until all have ended."""
        waiting = set(ids)
        order = list(ids)
        while waiting:
            for id in order:
                box = self._boxes[id]
                while box:
                    chunk = box.popleft()
                    if chunk.completion is not None:
                        waiting.discard(id)
                    yield chunk
            if waiting and not any(self._boxes[id] for id in waiting):
                self._step()

    def close(self, ids: Iterable[str]) -> None:
        """Abort those of these requests that have not ended, and drop what nobody took."""
        for id in ids:
            self._engine.abort(id)
            self._boxes.pop(id, None)

    def _step(self) -> None:
        if self._engine.idle and self._engine.failure is None:
            raise RequestError("a request that is waited for was aborted elsewhere", hint="leave its iterator instead")
        with deferred():  # an interrupt in the middle of a step would leave the engine in no state at all
            for chunk in self._engine.step():
                if chunk.request_id in self._boxes:
                    self._boxes[chunk.request_id].append(chunk)
