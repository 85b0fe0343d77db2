"""Ways to decode the same prompts, in turn: times and what was drafted. Knows engines; shows nothing."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from byref.config import Config
from byref.contract.requests import SamplingParams
from byref.engine import Completion, Engine

PLAIN = "plain"
Job = tuple[list[int], SamplingParams]
"""A prompt and how it is continued."""


@dataclass(slots=True)
class Measured:
    """One way to decode."""

    name: str
    seconds: list[float] = field(default_factory=list)
    """Of each round over all prompts."""
    tokens: int = 0
    windows: int = 0
    """Forwards that verified drafts."""
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """By position: windows in which that many drafts were accepted."""
    drafting: float = 0.0
    """Seconds of a round that were spent proposing."""
    same: int = 0
    """Prompts whose tokens are those of plain decoding: all in fp32. In bf16 a near tie may fall the other way."""

    @property
    def rate(self) -> float:
        """New tokens per second, of the median round."""
        return self.tokens / statistics.median(self.seconds)

    def ratio(self, other: Measured) -> float:
        """Its rate over another's, of the median round: each round compares neighbours in time."""
        times = [theirs / mine for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        return statistics.median(times) * self.tokens / other.tokens

    def add(self, seconds: float, done: Sequence[Completion], plain: Sequence[Completion]) -> None:
        """A round over all prompts; what is drafted in it stands for every round."""
        self.seconds.append(seconds)
        drafts = [one.drafts for one in done]
        self.tokens = sum(len(one.token_ids) for one in done)
        self.windows, self.drafted = sum(d.windows for d in drafts), sum(d.drafted for d in drafts)
        self.accepted, self.drafting = sum(d.accepted for d in drafts), sum(d.seconds for d in drafts)
        self.accepted_at = [sum(column) for column in zip_longest(*(d.accepted_at for d in drafts), fillvalue=0)]
        self.same = sum(one.token_ids == other.token_ids for one, other in zip(done, plain, strict=True))


def ways(config: Config, drafters: Sequence[str], most: int | None = None) -> Iterator[tuple[str, Config]]:
    """The configuration of plain decoding and of each drafter: `NAME`, or `NAME:OPTION=VALUE,...` with options of the
    plugin (`tree`, `max_draft_tokens`, `adaptive`) or of the drafter."""
    from byref_spec_decoding.options import Options

    plugins = config.model_dump()["plugins"]
    others = [name for name in plugins["enable"] if name != "spec_decoding"]
    yield PLAIN, _with(config, {**plugins, "enable": others})
    for drafter in drafters:
        name, _, rest = drafter.partition(":")
        pairs = (pair.partition("=")[::2] for pair in re.split(r",(?![^\[]*\])", rest) if pair)
        given = {key: json.loads(value) if value.startswith("[") else value for key, value in pairs}
        own: dict[str, Any] = {key: value for key, value in given.items() if key in Options.model_fields}
        table = {**own, "drafter": name, "options": {key: value for key, value in given.items() if key not in own}}
        if most:
            table.setdefault("max_draft_tokens", most)
        yield drafter, _with(config, {**plugins, "enable": [*others, "spec_decoding"], "spec_decoding": table})


def _with(config: Config, plugins: Mapping[str, Any]) -> Config:
    return Config.model_validate({**config.model_dump(), "plugins": plugins})


def compare(configs: Mapping[str, Config], jobs: Sequence[Job], together: int, rounds: int) -> list[Measured]:
    """Every way over all jobs, in turn, `rounds` times, after one that is not counted; the plain one comes first."""
    with ExitStack() as stack:
        engines = {name: stack.enter_context(Engine.start(config)) for name, config in configs.items()}
        measured = {name: Measured(name) for name in configs}
        plain = _run(engines[next(iter(engines))], jobs, together)
        for engine in list(engines.values())[1:]:
            _run(engine, jobs[:together], together)
        for i in range(rounds):
            for name in list(engines) if i % 2 == 0 else reversed(engines):  # drift favours nobody
                began = time.perf_counter()
                done = _run(engines[name], jobs, together)
                measured[name].add(time.perf_counter() - began, done, plain)
        return list(measured.values())


def _run(engine: Engine, jobs: Sequence[Job], together: int) -> list[Completion]:
    """All jobs, so many at once."""
    done: dict[str, Completion] = {}
    waiting, ids, running = iter(jobs), [], 0
    while len(done) < len(jobs):
        while running < together and (job := next(waiting, None)) is not None:
            ids.append(engine.add(*job))
            running += 1
        ended = {chunk.request_id: chunk.completion for chunk in engine.step() if chunk.completion is not None}
        done |= ended
        running -= len(ended)
    return [done[id] for id in ids]
