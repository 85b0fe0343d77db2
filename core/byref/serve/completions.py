"""/v1/completions: prompts in, their continuations out. Knows this endpoint's answers; the desk knows the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from byref.contract.requests import Reason
from byref.engine import Chunk, Completion
from byref.serve import scores
from byref.serve.answers import CompletionAnswer
from byref.serve.desk import Ask, Desk, Open, unless_gone
from byref.serve.events import Events, Steps
from byref.serve.schemas import CompletionRequest
from byref.serve.usage import FINISHED, usage
from byref.text import Tokenizer

router = APIRouter()
STREAM: dict[int | str, dict[str, Any]] = {
    200: {"model": CompletionAnswer, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.post("/v1/completions", responses=STREAM)
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue one prompt, or several at once."""
    desk: Desk = request.app.state.desk
    tokenizer = desk.engine.tokenizer
    desk.check_model(body.model)
    prompts = [body.prompt] if _is_one(body.prompt) else body.prompt
    given = body.given()
    if body.echo and body.logprobs is not None:
        given["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    given["max_tokens"] = max(body.max_tokens, 1)
    ids = await asyncio.to_thread(lambda: [_ids(tokenizer, prompt) for prompt in prompts])
    opened = await desk.take(request, Ask(body, ids, desk.params(given)), "completions", "cmpl")
    answer = Answer(opened, body, tokenizer, prompts)
    if body.stream:
        return Events(opened, answer.stream())
    updates = await unless_gone(request, opened)
    done = {update.prompt: update.chunk.completion for update in updates if update.chunk.completion is not None}
    return JSONResponse(answer.whole([done[number] for number in range(len(prompts))]))


def _is_one(prompt: Any) -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], int)


def _ids(tokenizer: Tokenizer, prompt: Any) -> Sequence[int]:
    return tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


class Answer:
    """The answer to one request, whole or in events."""

    def __init__(self, opened: Open, body: CompletionRequest, tokenizer: Tokenizer, prompts: Sequence[Any]) -> None:
        self._opened, self._body, self._tokenizer = opened, body, tokenizer
        self._n = opened.ask.params.n
        self._echoed = [self._text(prompt) if body.echo else "" for prompt in prompts]
        self._head = {
            "id": opened.id,
            "object": "text_completion",
            "created": int(opened.since),
            "model": opened.desk.model,
        }
        self._scored = body.logprobs is not None
        self._silent = body.max_tokens == 0
        """Whether the one token that the engine makes is none of the client's."""
        self._offsets: dict[int, scores.Offsets] = {}
        """Per choice: where its next tokens stand in the text."""

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """One body."""
        choices = [self._choice(p, one) for p, done in enumerate(completions) for one in done.choices]
        return {**self._head, "choices": choices, "usage": self._usage(completions)}

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        """Event by event."""
        options = self._body.stream_options
        steps = Steps(self._tokenizer) if options and options.include_steps else None
        with_usage = options is not None and options.include_usage
        extra = {"usage": None} if with_usage else {}
        done = []
        for number, echo in enumerate(self._echoed):
            for choice in range(0 if self._scored or not echo else self._n):
                yield {**self._head, "choices": [self._delta(number * self._n + choice, echo)], **extra}
        async for update in self._opened.updates():
            chunk = self._kept(update.chunk)
            if chunk.completion is not None:
                done.append(chunk.completion)
            if chunk.prompt_logprobs:
                yield {**self._head, "choices": [self._of_prompt(update.prompt, chunk)], **extra}
            if not (chunk.text or chunk.finished or chunk.logprobs or steps):
                continue
            event = {**self._head, "choices": [self._event(update.prompt, chunk)], **extra}
            yield {**event, "byref": steps.of(replace(update, chunk=chunk))} if steps else event
        if with_usage:
            yield {**self._head, "choices": [], "usage": self._usage(done)}

    def _kept(self, chunk: Chunk) -> Chunk:
        return replace(chunk, text="", token_ids=(), logprobs=()) if self._silent else chunk

    def _event(self, prompt: int, chunk: Chunk) -> dict[str, Any]:
        index = prompt * self._n + chunk.choice
        event = self._delta(index, chunk.text, self._reason(chunk.finished) if chunk.finished else None)
        if self._scored:
            event["logprobs"] = self._scores(index, chunk.token_ids, chunk.logprobs)
        return event

    def _of_prompt(self, prompt: int, chunk: Chunk) -> dict[str, Any]:
        """What a choice says of its prompt before it goes on: text and scores, as far as they are asked for."""
        index = prompt * self._n + chunk.choice
        echoed = self._body.echo and self._scored
        event = self._delta(index, self._echoed[prompt] if echoed else "")
        if echoed:
            event["logprobs"] = self._scores_of_prompt(prompt, chunk.prompt_logprobs)
        if self._body.prompt_logprobs is not None:
            event["prompt_logprobs"] = scores.of_prompt(chunk.prompt_logprobs, self._body.prompt_logprobs)
        return event

    def _scores_of_prompt(self, prompt: int, found: Sequence[scores.Scores | None]) -> dict[str, Any]:
        ids = self._opened.ask.prompts[prompt]
        offsets = scores.Offsets(self._tokenizer).of(ids)
        return scores.of_completion(self._tokenizer, ids, found, self._body.logprobs or 0, offsets)

    def _scores(self, index: int, ids: Sequence[int], found: Sequence[scores.Scores]) -> dict[str, Any]:
        """Of a choice's next tokens."""
        start = len(self._echoed[index // self._n])
        offsets = self._offsets.setdefault(index, scores.Offsets(self._tokenizer, start)).of(ids)
        return scores.of_completion(self._tokenizer, ids, found, self._body.logprobs or 0, offsets)

    def _reason(self, finished: Reason) -> str:
        return "length" if self._silent else FINISHED[finished]

    def _delta(self, index: int, text: str, finished: str | None = None) -> dict[str, Any]:
        return {"index": index, "text": text, "finish_reason": finished, "logprobs": None}

    def _choice(self, prompt: int, done: Completion) -> dict[str, Any]:
        text = self._echoed[prompt] + ("" if self._silent else done.text)
        choice = self._delta(prompt * self._n + done.choice, text, self._reason(done.finished))
        if self._scored:
            kept = 0 if self._silent else len(done.token_ids)
            after = self._scores(choice["index"], done.token_ids[:kept], done.logprobs[:kept])
            before = self._scores_of_prompt(prompt, done.prompt_logprobs) if self._body.echo else {}
            choice["logprobs"] = {name: before.get(name, []) + after[name] for name in after}
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = scores.of_prompt(done.prompt_logprobs, self._body.prompt_logprobs)
        return choice

    def _usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        return usage(completions, 0 if self._silent else None)

    def _text(self, prompt: Any) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
