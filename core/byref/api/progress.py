"""The progress of many requests, on terminals. Knows rich and counts; no engine."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Batch:
    """A bar on standard error: requests done, tokens per second, time left.

    Args:
        total: number of requests.
        show: whether to show it; None for more than one request on a terminal.
        console: where it goes instead.
    """

    def __init__(self, total: int, show: bool | None = None, *, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        shown = console.is_terminal and total > 1 if show is None else show
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        rate = TextColumn("{task.fields[rate]:.1f} tok/s")
        self._progress = Progress(*columns, rate, console=console, disable=not shown)
        self._task = self._progress.add_task("generating", total=total, rate=0.0)
        self._tokens, self._started = 0, time.perf_counter()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def count(self, tokens: int = 0, *, finished: bool = False) -> None:
        """So many tokens came, and perhaps a request ended with them."""
        self._tokens += tokens
        rate = self._tokens / max(time.perf_counter() - self._started, 1e-9)
        self._progress.update(self._task, advance=int(finished), rate=rate)
