"""Scheduling policies. Each knows one request at a time; budgets and memory are not theirs."""

from __future__ import annotations

from collections.abc import Sequence

from byref.contract.requests import Request
from byref.contract.roles import Policy


class Fifo(Policy):
    """First come, first served; the youngest is preempted."""

    def rank(self, request: Request) -> tuple[float, ...]:
        return (request.arrival,)

    def victim(self, running: Sequence[Request]) -> Request | None:
        return max(running, key=self.rank, default=None)


POLICIES = {"fifo": Fifo}
