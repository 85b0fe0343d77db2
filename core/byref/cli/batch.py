"""`byref batch`: answers a file of requests, resumably. Knows what runs and what is done; jsonl knows the lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from byref.cli import jsonl, options, sampling
from byref.contract.errors import EngineStopped, RequestError

if TYPE_CHECKING:
    from byref.api.progress import Batch
    from byref.config import Config
    from byref.contract.requests import SamplingParams
    from byref.engine import Completion, Engine

NO_HINT = "correct the value"
"""What an error says where nothing better is known."""


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.JSONL", help="Requests, one JSON object a line.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.JSONL", help="Results; those it has already are kept.")],
    model: options.Model = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    param: options.Param = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    set: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Answer every request of a file; started again, it goes on where it was.

    A line has a `prompt` (text or token ids) or `messages`; an `id` (or else its number is taken); `priority`,
    `plugins` (options by plugin name) and any sampling parameter, which wins over the options given here.
    """
    settings = options.configure(config, plugin, no_plugins, set, path=model, device=device, dtype=dtype)
    params = sampling.from_options(
        param, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop or None
    )
    lines = sum(1 for _ in jsonl.numbered(source))
    finished = jsonl.finished(target)
    failed = _run(settings, params, source, target, finished, lines)
    if failed:
        what = f"{failed} of {lines} requests failed, each with a line above"
        raise RequestError(what, where=str(source), hint="correct them and run the same command again")


def _run(config: Config, params: SamplingParams, source: Path, target: Path, finished: set[str], lines: int) -> int:
    """Answer what is not finished; how many failed."""
    from byref.api.progress import Batch
    from byref.engine import Engine

    with Engine.start(config) as engine, target.open("a", encoding="utf-8") as out, Batch(lines) as bar:
        work = Work(engine, params, source, finished, bar)
        try:
            for line, completion in work.results():
                print(jsonl.result(line, completion), file=out, flush=True)
        except KeyboardInterrupt:
            print("byref: interrupted; what was finished is kept, and the same command goes on", file=sys.stderr)
            raise
    return work.failed


class Work:
    """The requests of a file on their way through an engine, a bounded number at once.

    Args:
        engine: nobody else uses it.
        params: what lines do not say.
        source: the file.
        finished: ids that are skipped.
        bar: is told of everything that ends.
    """

    def __init__(self, engine: Engine, params: SamplingParams, source: Path, finished: set[str], bar: Batch) -> None:
        self._engine, self._params, self._source, self._bar = engine, params, source, bar
        self._finished = finished
        self._live: dict[str, jsonl.Line] = {}
        # So many wait that the engine never runs short of them; the file may be longer than memory.
        self._most = 2 * engine.config.engine.max_requests
        self.failed = 0
        """Requests that were refused or failed."""

    def results(self) -> Iterator[tuple[jsonl.Line, Completion]]:
        """Finished requests, as they finish."""
        lines = self._lines()
        more = True
        while more or self._live:
            while more and len(self._live) < self._most:
                line = next(lines, None)
                more = line is not None
                if line is not None:
                    self._add(line)
            if self._live:
                yield from self._step()

    def _lines(self) -> Iterator[jsonl.Line]:
        """Requests that are to be answered; those that cannot be are reported."""
        seen: set[str] = set()
        for number, text in jsonl.numbered(self._source):
            try:
                line = jsonl.request(self._source, number, text, self._params)
                line.claim(seen, self._source)
            except RequestError as error:
                self._fail(error, number)
                continue
            if str(line.id) in self._finished:
                self._bar.count(finished=True)
            else:
                yield line

    def _add(self, line: jsonl.Line) -> None:
        request, engine = line.envelope, self._engine
        try:
            prompt = request.prompt
            if prompt is None:
                prompt = tuple(engine.tokenizer.encode(engine.tokenizer.chat(request.messages or ()), special=False))
            id = engine.add(prompt, line.params, priority=request.priority, options=request.plugins)
        except RequestError as error:
            self._fail(RequestError(error.what, hint=error.hint), line.number)
        else:
            self._live[id] = line

    def _step(self) -> Iterator[tuple[jsonl.Line, Completion]]:
        for chunk in self._engine.step():
            self._bar.count(len(chunk.token_ids))
            if chunk.completion is None:
                continue
            line, error = self._live.pop(chunk.request_id), chunk.completion.error
            if isinstance(error, EngineStopped):
                raise error
            if error is not None:
                self._fail(RequestError(error.what, hint=error.hint), line.number)
                continue
            self._bar.count(finished=True)
            yield line, chunk.completion

    def _fail(self, error: RequestError, number: int) -> None:
        """One line on standard error."""
        self.failed += 1
        self._bar.count(finished=True)
        _, _, field = error.where.rpartition(", field ")
        place = error.where or jsonl.where(self._source, number)
        hint = f" ({error.hint})" if error.hint not in ("", NO_HINT) else ""
        print(" ".join(f"{place}: {error.what.removeprefix(f'{field}: ')}{hint}".split()), file=sys.stderr)
