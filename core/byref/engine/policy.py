"""Scheduling policies. Each knows one request at a time; budgets and memory are not theirs."""

from __future__ import annotations

from collections.abc import Sequence

from byref.contract.requests import Request
from byref.contract.roles import Policy


class Fifo(Policy):
    """First come, first served; whoever would be served last is preempted."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.arrival,)

    def victim(self, running: Sequence[Request]) -> Request | None:
        return max(running, key=self.rank, default=None)


class Priority(Fifo):
    """The smallest `priority` first, and the first come of equals."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.priority, request.arrival)


class Shortest(Fifo):
    """The fewest tokens that it can ever have first, prompt and max_tokens together."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.limit, request.arrival)


POLICIES = {"fifo": Fifo, "priority": Priority, "shortest": Shortest}
