"""/v1/chat/completions: conversations in, answers out. Knows this endpoint's answers; tools have their own file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from byref.engine import Chunk, Completion, Engine
from byref.serve import scores
from byref.serve.answers import ChatAnswer
from byref.serve.desk import Ask, Desk, Open, unless_gone
from byref.serve.events import Events, Steps
from byref.serve.schemas import ChatRequest, Message
from byref.serve.structure import constraint, shaping
from byref.serve.tools import CallReader, check_template, offered
from byref.serve.usage import FINISHED, usage
from byref.text import Tokenizer

router = APIRouter()
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"model": ChatAnswer, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.post("/v1/chat/completions", responses=STREAM)
async def chat(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation."""
    desk: Desk = request.app.state.desk
    engine = desk.engine
    desk.check_model(body.model)
    if body.tools:
        check_template(engine.tokenizer)
    options = constraint(engine, body)
    prompt = await asyncio.to_thread(render, engine.tokenizer, body)
    given = body.given()
    given["max_tokens"] = body.most_tokens or _room(engine, len(prompt))
    given["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    names = {"prompt": "messages", **{f"plugins.{plugin}": shaping(body) for plugin in options}}
    opened = await desk.take(request, Ask(body, [prompt], desk.params(given), options, names), "chat", "chatcmpl")
    answer = Answer(opened, body, engine.tokenizer)
    if body.stream:
        return Events(opened, answer.stream())
    updates = await unless_gone(request, opened)
    done = next(update.chunk.completion for update in updates if update.chunk.completion is not None)
    return JSONResponse(answer.whole(done))


def render(tokenizer: Tokenizer, body: ChatRequest) -> list[int]:
    """The conversation's token ids, up to where the answer begins."""
    messages = [turn(message) for message in body.messages]
    return tokenizer.encode(tokenizer.chat(messages, tools=offered(body)), special=False)


def turn(message: Message) -> dict[str, Any]:
    """A message as templates read it: its parts joined, nothing that is not there."""
    table = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        table["content"] = "".join(part.text for part in message.content)
    return {"content": "", **table}


def _room(engine: Engine, prompt: int) -> int:
    """New tokens that there is room for, where the client does not say."""
    sizing = engine.parts.sizing
    return max(min(sizing.max_context, sizing.kv_tokens - sizing.max_drafts) - prompt, 1)


class Answer:
    """The answer to one request, whole or in events."""

    def __init__(self, opened: Open, body: ChatRequest, tokenizer: Tokenizer) -> None:
        self._opened, self._body, self._tokenizer = opened, body, tokenizer
        self._n = opened.ask.params.n
        self._head = {"id": opened.id, "created": int(opened.since), "model": opened.desk.model}
        self._readers = [CallReader(body) for _ in range(self._n)]

    def whole(self, done: Completion) -> dict[str, Any]:
        """One body."""
        choices = [self._choice(one) for one in done.choices]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage([done])}

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Event by event."""
        options = self._body.stream_options
        steps = Steps(self._tokenizer) if options and options.include_steps else None
        with_usage = options is not None and options.include_usage
        head = {**self._head, "object": "chat.completion.chunk"}
        extra = {"usage": None} if with_usage else {}
        for choice in range(self._n):
            yield {**head, "choices": [_delta(choice, {"role": "assistant", "content": ""})], **extra}
        done: list[Completion] = []
        async for update in self._opened.updates():
            if update.chunk.completion is not None:
                done.append(update.chunk.completion)
            events = self._events(update.chunk) or ([_delta(update.chunk.choice, {})] if steps else [])
            told = {"byref": steps.of(update)} if steps else {}
            for event in events:
                yield {**head, "choices": [event], **extra, **told}
                told = {}  # once for all that a step brought
        if with_usage:
            yield {**head, "choices": [], "usage": usage(done)}

    def _events(self, chunk: Chunk) -> list[dict[str, Any]]:
        """What one chunk adds to its choice: text, calls, and why it ends."""
        reader = self._readers[chunk.choice]
        text, calls = reader.push(chunk.text, last=chunk.finished is not None)
        events: list[dict[str, Any]] = [{"content": text}] if text else []
        events += [{"tool_calls": [{"index": i, **call}]} for i, call in calls]
        made = [_delta(chunk.choice, event) for event in events]
        if chunk.finished is not None:
            reason = "tool_calls" if reader.called else FINISHED[chunk.finished]
            made.append(_delta(chunk.choice, {}, reason))
        if self._body.logprobs and chunk.token_ids:
            made = made or [_delta(chunk.choice, {})]
            made[0]["logprobs"] = self._scores(chunk.token_ids, chunk.logprobs)
        if self._body.prompt_logprobs is not None and chunk.prompt_logprobs:
            made = made or [_delta(chunk.choice, {})]
            made[0]["prompt_logprobs"] = scores.of_prompt(chunk.prompt_logprobs, self._body.prompt_logprobs)
        return made

    def _choice(self, done: Completion) -> dict[str, Any]:
        reader = self._readers[done.choice]
        text, calls = reader.push(done.text, last=True)
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = [call for _, call in calls]
        choice = {
            "index": done.choice,
            "message": message,
            "finish_reason": "tool_calls" if calls else FINISHED[done.finished],
            "logprobs": self._scores(done.token_ids, done.logprobs) if self._body.logprobs else None,
        }
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = scores.of_prompt(done.prompt_logprobs, self._body.prompt_logprobs)
        return choice

    def _scores(self, ids: Sequence[int], found: Sequence[scores.Scores]) -> dict[str, Any]:
        return scores.of_chat(self._tokenizer, ids, found, self._body.top_logprobs or 0)


def _delta(choice: int, delta: dict[str, Any], finished: str | None = None) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "finish_reason": finished, "logprobs": None}
