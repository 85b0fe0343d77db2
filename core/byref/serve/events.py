"""A stream of events that always ends well: with [DONE], or with an error in the one shape. Knows no endpoint."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from byref.engine import Chunk
from byref.serve.desk import Open
from byref.serve.errors import told
from byref.serve.reply import Update
from byref.text import Detokenizer, Tokenizer

# What runs when the server is told to stop is finished, or failed after a while: the library would cut it at once.
AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # it carries no types


class Events(EventSourceResponse):
    """The events of one request; closed with it, however it ends."""

    def __init__(self, opened: Open, events: AsyncIterator[Mapping[str, Any]]) -> None:
        patience = opened.desk.config.serve.timeout  # a client that does not read keeps its place no longer
        super().__init__(_encoded(events), sep="\n", ping=15, send_timeout=patience)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._opened.close()


async def _encoded(events: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[ServerSentEvent]:
    try:
        async for event in events:
            yield ServerSentEvent(data=_json(event), sep="\n")
    except Exception as error:
        yield ServerSentEvent(data=_json(told(error).body()), sep="\n")
    else:
        yield ServerSentEvent(data="[DONE]", sep="\n")


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


class Steps:
    """What the engine's steps did, event by event: `include_steps` asks for it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._spelled: dict[tuple[int, int], _Spelled] = {}

    def of(self, update: Update) -> dict[str, Any]:
        """The step's figures, and its text in pieces: [text, whether an accepted draft brought it]."""
        report = update.report
        step = None if report is None else {"number": report.number, "seconds": round(report.seconds, 6)}
        if step is not None and report is not None:
            step |= {"rows": report.rows, "drafted": report.drafted, "drafts_kept": report.drafts_kept}
        return {"step": step, "pieces": self._pieces(update.prompt, update.chunk)}

    def _pieces(self, prompt: int, chunk: Chunk) -> list[tuple[str, bool]]:
        spelled = self._spelled.setdefault((prompt, chunk.choice), _Spelled(self._tokenizer.stream()))
        return spelled.push(chunk)


class _Spelled:
    """One choice's text by token. What a stop string may begin with is shown when it is known to be none, as the text
    itself is; the stop string never."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._held: deque[tuple[str, bool]] = deque()

    def push(self, chunk: Chunk) -> list[tuple[str, bool]]:
        """The pieces that the chunk's text is made of."""
        push = self._detokenizer.push
        self._held += [(push(id), i < chunk.drafted) for i, id in enumerate(chunk.token_ids)]
        if chunk.finished is not None:
            self._held.append((self._detokenizer.flush(), False))
        left, pieces = len(chunk.text), []
        while left and self._held:
            text, drafted = self._held.popleft()
            pieces.append((text[:left], drafted))
            if len(text) > left:
                self._held.appendleft((text[left:], drafted))
            left -= len(pieces[-1][0])
        return [piece for piece in pieces if piece[0]]
