"""What the engine says about the prompts of one HTTP request, as it comes. Lives in the event loop; knows no thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from byref.contract.step import StepReport
from byref.engine import Chunk


@dataclass(frozen=True, slots=True)
class Update:
    """One chunk of one prompt."""

    prompt: int
    """Which of the request's prompts."""
    chunk: Chunk
    report: StepReport | None = None
    """Of the step that made it."""


class Reply:
    """Chunks of one or several engine requests, in the order they come.

    Args:
        seconds: so long is waited for all of them; then whoever waits gets a TimeoutError.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = asyncio.get_running_loop().time() + seconds
        self._numbers: dict[str, int] = {}
        self._waiting: asyncio.Queue[Update | Exception | None] = asyncio.Queue()

    @property
    def ids(self) -> tuple[str, ...]:
        """Of the engine requests."""
        return tuple(self._numbers)

    def expect(self, id: str, number: int) -> None:
        """Chunks of `id` belong to the prompt of this number."""
        self._numbers[id] = number

    def number(self, id: str) -> int:
        """Which prompt it is."""
        return self._numbers[id]

    def accept(self) -> None:
        """The engine has taken every prompt."""
        self._waiting.put_nowait(None)

    def put(self, update: Update | Exception) -> None:
        """Add what came; an error ends the reply."""
        self._waiting.put_nowait(update)

    async def accepted(self) -> None:
        """Wait until the engine has taken every prompt; raise what it refused one with."""
        first = await self._next()
        if isinstance(first, Exception):
            raise first

    async def updates(self) -> AsyncIterator[Update]:
        """Updates until every prompt has ended; raises the first error, of whichever prompt."""
        left = len(self._numbers)
        while left:
            update = await self._next()
            if isinstance(update, Exception):
                raise update
            if update is None:
                continue
            completion = update.chunk.completion
            if completion is not None:
                left -= 1
                for choice in completion.choices:
                    if choice.error is not None:
                        raise choice.error
            yield update

    async def _next(self) -> Update | Exception | None:
        if not self._waiting.empty():
            return self._waiting.get_nowait()
        async with asyncio.timeout_at(self._deadline):
            return await self._waiting.get()
