"""Requests that hold what the others need do not wait for one another for ever."""

from __future__ import annotations

import torch

from byref.contract import Request, SamplingParams
from byref.contract.roles import TARGET, RoleSizing, Sizing
from byref.contract.step import Grant
from byref.engine.plan import Events, Planner
from byref.engine.policy import Fifo
from byref.engine.speculator import PlainSpeculator

ROOM = 12


class ByChunks:
    """A KV that promises no more than the next chunk when a request starts."""

    def __init__(self):
        self.held: dict[str, int] = {}

    def refusal(self, request):
        return None

    def match(self, request):
        return 0

    def reserve(self, request, n):
        upto = min(request.computed + n, request.computed + 4)
        if sum(self.held.values()) - self.held.get(request.id, 0) + upto > ROOM:
            return None
        self.held[request.id] = upto
        return Grant(request.id, upto)

    def follows(self, request):
        return False

    def release(self, request):
        self.held.pop(request.id, None)


def planner(kv):
    sizing = Sizing(
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_requests=3,
        max_rows=12,
        max_context=64,
        max_drafts=0,
        kv_tokens=ROOM,
        captured=frozenset(),
        roles=(RoleSizing(TARGET, 0, 1, 0),),
        pools=(),
    )

    def nothing(*_):
        return None

    return Planner(kv, PlainSpeculator(), Fifo(), sizing, 4, Events(nothing, nothing, nothing, nothing))


def test_the_first_in_rank_goes_on_where_nobody_has_progressed():
    made = planner(ByChunks())
    requests = [
        Request(f"r{i}", tuple(range(9)), SamplingParams(max_tokens=1), 0, arrival=i, tokens=list(range(9)))
        for i in range(3)
    ]
    for request in requests:
        made.queue(request)
        made._restarted[request.id] = 0  # each was preempted before, and may not be again
    for _ in range(30):
        plan = made.plan()
        assert plan.windows or not made.running
        for window in plan.windows:
            request = next(one for one in requests if one.id == window.request)
            request.lengths[TARGET] = window.end
            if window.end == len(request.tokens):
                request.tokens.append(1)
                made.running.remove(request)
                made.kv.release(request)
                made._give_row(request)
    assert [request.generated for request in requests] == [1, 1, 1]
