"""The load of `byref bench`: so many requests at once until all are done. Knows times; prints nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from byref.api.progress import Batch
from byref.contract.errors import ConfigError
from byref.contract.requests import SamplingParams
from byref.engine import Engine


@dataclass(slots=True)
class Level:
    """What was measured with so many requests at once. Times are seconds."""

    concurrency: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    """Per request: from arrival to its first token."""
    gaps: list[float] = field(default_factory=list)
    """Per further token: since the one before; tokens of one step share its time."""
    total: list[float] = field(default_factory=list)
    """Per request: from arrival to its end."""

    @property
    def new_rate(self) -> float:
        """New tokens per second."""
        return self.new_tokens / self.seconds

    @property
    def rate(self) -> float:
        """Tokens per second, those of prompts included."""
        return (self.new_tokens + self.prompt_tokens) / self.seconds

    @property
    def request_rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


class Load:
    """Random prompts of one length, answered at a chosen concurrency.

    Args:
        engine: nobody else uses it.
        prompt_tokens: length of each prompt.
        max_tokens: new tokens of each request, whatever they are.
        seed: fixes the prompts.
        bar: is told of every token and request.
    """

    def __init__(self, engine: Engine, prompt_tokens: int, max_tokens: int, seed: int, bar: Batch) -> None:
        most = engine.parts.sizing.max_context
        if prompt_tokens + max_tokens > most:
            what = f"{prompt_tokens} prompt tokens and {max_tokens} new ones do not fit into {most}"
            raise ConfigError(what, where="--prompt-tokens, --max-tokens", hint="fewer of them")
        self._engine, self._bar = engine, bar
        self._size, self._params = prompt_tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self._random = random.Random(seed)
        self._ids = [id for id in range(engine.vocabulary) if id not in engine.tokenizer.special_ids]
        self._engine.generate([self._prompt()], SamplingParams(max_tokens=2))  # what is made once is not measured

    def run(self, requests: int, concurrency: int) -> Level:
        """Answer so many requests, each replaced by the next when it ends."""
        level = Level(concurrency, requests, requests * self._size, 0)
        prompts = iter([self._prompt() for _ in range(requests)])
        begun = time.perf_counter()
        started: dict[str, float] = {}
        newest: dict[str, float] = {}
        while self._fill(prompts, started, concurrency):
            for id, tokens, ended in self._step():
                now = time.perf_counter()
                level.new_tokens += tokens
                if tokens and id not in newest:
                    level.first.append(now - started[id])
                elif tokens:
                    level.gaps += [(now - newest[id]) / tokens] * tokens
                newest[id] = now
                if ended:
                    level.total.append(now - started.pop(id))
        level.seconds = time.perf_counter() - begun
        return level

    def _prompt(self) -> list[int]:
        return self._random.choices(self._ids, k=self._size)

    def _fill(self, prompts: Iterator[list[int]], started: dict[str, float], concurrency: int) -> bool:
        """Add requests while there is room; whether any runs."""
        while len(started) < concurrency and (prompt := next(prompts, None)) is not None:
            now = time.perf_counter()
            started[self._engine.add(prompt, self._params)] = now
        return bool(started)

    def _step(self) -> Iterator[tuple[str, int, bool]]:
        """Per request of a step: its id, how many tokens came, whether it ended."""
        for chunk in self._engine.step():
            if chunk.completion is not None and chunk.completion.error is not None:
                raise chunk.completion.error
            ended = chunk.completion is not None
            self._bar.count(len(chunk.token_ids), finished=ended)
            yield chunk.request_id, len(chunk.token_ids), ended
