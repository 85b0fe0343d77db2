"""Counts accepted tokens, adds a command, and leaves a mark on disk as soon as it is imported."""

import os
from pathlib import Path

import typer
from pydantic import BaseModel, ConfigDict

from byref import Plugin, PluginInfo, hookimpl

if mark := os.environ.get("STRANGER_MARK"):
    Path(mark).write_text("imported")


class CounterOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    start: int = 0
    favourite: int | None = None


class CounterRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    label: str


class Counter(Plugin[CounterOptions]):
    """Counts accepted tokens; makes its favourite token certain."""

    info = PluginInfo(api_version=1, provides=("test.count",), lossless=False)
    Options = CounterOptions
    RequestOptions = CounterRequest

    def __init__(self, name, options):
        super().__init__(name, options)
        self.count = options.start

    @hookimpl
    def register(self, registry):
        registry.command("count", "stranger_good.counter:say")
        registry.register("counter", "tokens", self)

    @hookimpl
    def adjust_logits(self, rows):
        if self.options.favourite is not None:
            rows.logits[:, self.options.favourite] += 1e4

    @hookimpl
    def step_done(self, report):
        self.count += report.accepted


def say(upto: int) -> None:
    typer.echo(" ".join(str(i) for i in range(upto)))
