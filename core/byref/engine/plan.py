"""Step 1, plan: which rows the next forward computes. Knows requests, budgets and grants; no text and no tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from byref.contract.errors import RequestError
from byref.contract.requests import Reason, Request
from byref.contract.roles import KV, TARGET, Policy, Sizing, Speculator
from byref.contract.step import MAX_TREE, Grant, StepPlan, Wanted, Window

Admit = Callable[[Request], None]
Drop = Callable[[Request, Reason], None]


@dataclass(slots=True)
class Events:
    """How the planner tells of requests that start, pause or cannot be served."""

    added: Admit
    released: Drop
    failed: Callable[[Request, RequestError], None]


@dataclass(slots=True)
class Planner:
    """Continuous batching: every running request gets its next window, then waiting ones are admitted, within
    `max_rows` rows a step. Prompts are computed in chunks of at most `chunk` rows."""

    kv: KV
    speculator: Speculator
    policy: Policy
    sizing: Sizing
    chunk: int
    events: Events
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    _free_rows: list[int] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self._free_rows = list(range(self.sizing.max_requests, 0, -1))

    def plan(self) -> StepPlan:
        """The next step's windows: decodes first, prompts after them."""
        windows: list[Window] = []
        grants: list[Grant] = []
        budget = self.sizing.max_rows
        for request in sorted(self.running, key=lambda r: len(r.tokens) - r.computed):
            budget = self._grant(request, budget, windows, grants)
        self.waiting.sort(key=self.policy.rank)
        while self.waiting and budget > 0 and self._free_rows:
            request = self.waiting[0]
            if not self._admit(request):
                break
            if request.row:
                budget = self._grant(request, budget, windows, grants)
        self._number += 1
        return StepPlan(self._number, tuple(windows), tuple(grants))

    def release(self, request: Request, reason: Reason) -> None:
        """Take a running request's memory and row back."""
        self.running.remove(request)
        try:
            self.events.released(request, reason)
        finally:
            self.kv.release(request)
            self._free_rows.append(request.row)
            request.row = 0
            request.lengths.clear()

    def _admit(self, request: Request) -> bool:
        """Give the first waiting request a row and its memory; False where it has to wait."""
        refusal = self.kv.refusal(request)
        if refusal:
            self.waiting.remove(request)
            self.events.failed(request, RequestError(f"request {request.id} can never run: {refusal}"))
            return True
        request.row = self._free_rows.pop()
        request.cached_tokens = self.kv.match(request)
        request.lengths = {TARGET: request.cached_tokens}
        if self.kv.reserve(request, 1) is None:
            self.kv.release(request)
            self._free_rows.append(request.row)
            request.row = 0
            return False
        self.waiting.remove(request)
        self.running.append(request)
        try:
            self.events.added(request)
        except RequestError as error:
            self.running.remove(request)
            self.kv.release(request)
            self._free_rows.append(request.row)
            request.row = 0
            self.events.failed(request, error)
        return True

    def _grant(self, request: Request, budget: int, windows: list[Window], grants: list[Grant]) -> int:
        """Add the request's window if rows and memory allow; returns the rows left."""
        if request not in self.running or budget <= 0:
            return budget
        window = self._window(request, budget)
        grant = self.kv.reserve(request, len(window.tokens))
        while grant is None:
            granted = {w.request for w in windows}
            victim = self.policy.victim([r for r in self.running if r is not request and r.id not in granted])
            if victim is None:
                return budget
            self._preempt(victim)
            grant = self.kv.reserve(request, len(window.tokens))
        windows.append(window)
        grants.append(grant)
        return budget - len(window.tokens)

    def _preempt(self, victim: Request) -> None:
        """Release it and queue it afresh."""
        try:
            self.release(victim, Reason.PREEMPTED)
        except RequestError as error:
            self.events.failed(victim, error)
        else:
            self.waiting.append(victim)

    def _window(self, request: Request, budget: int) -> Window:
        start = request.computed
        rest = len(request.tokens) - start
        prompt = rest > 1 or request.generated == 0
        known = min(rest, budget, self.chunk) if prompt else 1
        drafts: Sequence[int] = ()
        if known == rest and not prompt:
            room = min(request.limit, self.sizing.max_context) - len(request.tokens) - 1
            most = min(self.sizing.max_drafts, MAX_TREE, budget - known, max(room, 0))
            drafts = tuple(self.speculator.width(request))[:most]
        parents = tuple(p + known for p in self.speculator.parents(request))[: len(drafts)] if drafts else ()
        wants_all = request.params.prompt_logprobs is not None and start < len(request.prompt)
        last = Wanted.DRAFTS if drafts else Wanted.LAST
        return Window(
            request=request.id,
            row=request.row,
            role=TARGET,
            start=start,
            tokens=(*request.tokens[start : start + known], *drafts),
            drafts=len(drafts),
            parents=parents,
            wanted=Wanted.ALL if wants_all else last if known == rest else Wanted.NONE,
            prompt=prompt,
        )
