"""Step 1, plan: which rows the next forward computes. Knows requests, budgets and grants; no text and no tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from byref.contract.errors import RequestError
from byref.contract.requests import Reason, Request
from byref.contract.roles import KV, TARGET, Policy, Sizing, Speculator
from byref.contract.step import MAX_TREE, Grant, StepPlan, Wanted, Window

Admit = Callable[[Request], None]
Fork = Callable[[Request, Request], None]
Drop = Callable[[Request, Reason], None]


@dataclass(slots=True)
class Events:
    """How the planner tells of requests that start, pause or cannot be served."""

    added: Admit
    forked: Fork
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
    choices: dict[str, list[Request]] = field(default_factory=dict)
    """By request id: further choices, until it has computed all of their common prompt but the last token."""
    _free_rows: list[int] = field(default_factory=list)
    _number: int = 0
    _restarted: dict[str, int] = field(default_factory=dict)
    """Tokens that each request preempted for memory had by then: it makes one more before it is preempted again."""

    def __post_init__(self) -> None:
        self._free_rows = list(range(self.sizing.max_requests, 0, -1))

    @property
    def queued(self) -> int:
        """Requests and choices that wait."""
        return len(self.waiting) + sum(len(others) for others in self.choices.values())

    def queue(self, request: Request, others: Sequence[Request] = ()) -> None:
        """Let a request wait, and with it further choices of its prompt."""
        self.waiting.append(request)
        if others:
            self.choices[request.id] = list(others)

    def forget(self, request: Request) -> None:
        """Take a waiting request away."""
        for queue in (self.waiting, *self.choices.values()):
            if request in queue:
                queue.remove(request)
        self.kv.release(request)
        self._let_go(request)

    def _let_go(self, request: Request) -> None:
        """It ends, wherever it stood. Further choices that could not fork wait by themselves."""
        self._restarted.pop(request.id, None)
        self.waiting += self.choices.pop(request.id, ())

    def plan(self) -> StepPlan:
        """The next step's windows: decodes first, prompts after them."""
        windows: list[Window] = []
        grants: list[Grant] = []
        budget = self.sizing.max_rows
        for request in [one for one in self.running if one.id in self.choices]:
            self._fork_choices(request)
        ordered = sorted(self.running, key=lambda r: len(r.tokens) - r.computed)
        decodes, prompts = sum(len(r.tokens) - r.computed == 1 for r in ordered), self._prompt_rows()
        for i, request in enumerate(ordered, start=1):
            budget = self._grant(request, budget, windows, grants, kept=max(decodes - i, 0) + prompts)
        self.waiting.sort(key=self.policy.rank)
        for request in list(self.waiting):
            if budget <= 0 or not self._free_rows or not self._admit(request):
                break
            if request.row:
                budget = self._grant(request, budget, windows, grants)
        self._number += 1
        return StepPlan(self._number, tuple(windows), tuple(grants))

    def _prompt_rows(self) -> int:
        """Rows that no draft takes from prompts: what they want, up to half of a step. As every decode has its row
        before any has a draft, drafts make nobody wait."""
        rests = [len(r.tokens) - r.computed for r in self.running]
        waiting = sum(len(r.tokens) for r in self.waiting[: len(self._free_rows)])
        return min(sum(rest for rest in rests if rest > 1) + waiting, self.sizing.max_rows // 2)

    def release(self, request: Request, reason: Reason) -> None:
        """Take a running request's memory and row back."""
        self.running.remove(request)
        try:
            self.events.released(request, reason)
        finally:
            self.kv.release(request)
            self._give_row(request)
            if reason is not Reason.PREEMPTED:
                self._let_go(request)

    def _admit(self, request: Request) -> bool:
        """Give a waiting request a row and room for all its tokens; False where it has to wait for memory, and those
        behind it too. One that follows another waits alone.

        Plugins are told before the KV is asked: what they add to the cache key decides what it may find.
        """
        self.waiting.remove(request)
        request.row = self._free_rows.pop()
        try:
            self.events.added(request)
        except RequestError as error:
            self._give_row(request)
            self._fail(request, error)
            return True
        self.running.append(request)
        found = self.kv.match(request)
        request.lengths = {role.name: found for role in self.sizing.roles}
        if request.id not in self._restarted:  # what it finds of its own, when it starts over, was not cached for it
            request.cached_tokens = found
        if self.kv.reserve(request, len(request.tokens) - request.computed) is not None:
            self._fork_choices(request)
            return True
        follows = self.kv.follows(request)
        self._preempt(request)
        return follows

    def _fail(self, request: Request, error: RequestError) -> None:
        self.kv.release(request)
        self._let_go(request)
        self.events.failed(request, error)

    def _fork_choices(self, parent: Request) -> None:
        """Once all of the prompt but its last token is computed, further choices share that. Each computes the last
        token itself, so that its first row is its own. One that finds no room waits like any other request."""
        if parent.computed < len(parent.prompt) - 1:
            return
        for child in self.choices.pop(parent.id, ()):
            if parent.computed == 0 or not self._free_rows or not self._share(parent, child):
                self.waiting.append(child)

    def _share(self, parent: Request, child: Request) -> bool:
        child.row = self._free_rows.pop()
        child.lengths, child.cache_key = dict(parent.lengths), dict(parent.cache_key)
        child.cached_tokens = parent.cached_tokens
        try:
            self.kv.fork(parent, child)
        except RequestError:
            self._give_row(child)
            return False
        self.running.append(child)
        try:
            self.events.forked(parent, child)
        except RequestError as error:
            self.running.remove(child)
            self.kv.release(child)
            self._give_row(child)
            self.events.failed(child, error)
        return True

    def _give_row(self, request: Request) -> None:
        self._free_rows.append(request.row)
        request.row = 0
        request.lengths.clear()

    def _grant(self, request: Request, budget: int, windows: list[Window], grants: list[Grant], kept: int = 0) -> int:
        """Add the request's window if rows and memory allow; returns the rows left. No draft takes those `kept`."""
        if request not in self.running or budget <= 0:
            return budget
        window = self._window(request, budget, kept)
        grant = self.kv.reserve(request, len(window.tokens))
        if grant is None and window.drafts:
            window = undrafted(window)
            grant = self.kv.reserve(request, len(window.tokens))
        while grant is None:
            victim = self._victim(request, {w.request for w in windows})
            if victim is None or victim is request:
                return budget
            self._restarted[victim.id] = victim.generated
            self._preempt(victim)
            grant = self.kv.reserve(request, len(window.tokens))
        if window.start < grant.pause < window.end and window.prompt:
            window = shortened(window, grant.pause - window.start)
        windows.append(window)
        grants.append(grant)
        return budget - len(window.tokens)

    def _victim(self, request: Request, granted: set[str]) -> Request | None:
        """Whom the policy gives up for `request`, of those that got nothing in this step and have progressed since
        they last were. Where nobody has, all would wait for one another: the first in rank may then take from any."""
        progressed = [r for r in self.running if r.generated > self._restarted.get(r.id, -1)]
        victim = self.policy.victim([r for r in progressed if r.id not in granted])
        if victim is None and not granted and request is min(self.running, key=self.policy.rank):
            victim = self.policy.victim([r for r in self.running if r is not request])
        return victim

    def _preempt(self, victim: Request) -> None:
        """Release it and queue it afresh."""
        try:
            self.release(victim, Reason.PREEMPTED)
        except RequestError as error:
            self._fail(victim, error)
        else:
            self.waiting.append(victim)

    def _window(self, request: Request, budget: int, kept: int) -> Window:
        start = request.computed
        rest = len(request.tokens) - start
        prompt = rest > 1 or request.generated == 0
        # A prompt with further choices is computed up to its last token, then they fork.
        known = min(rest - (request.id in self.choices), budget, self.chunk) if prompt else 1
        drafts: Sequence[int] = ()
        if known == rest and not prompt:
            room = min(request.limit, self.sizing.max_context) - len(request.tokens) - 1
            most = max(min(self.sizing.max_drafts, MAX_TREE, budget - known - kept, room), 0)
            drafts = tuple(self.speculator.width(request))[:most]
        parents = tuple(p + known for p in self.speculator.parents(request))[: len(drafts)] if drafts else ()
        # Once it has generated something its prompt has been scored; what preemption dropped is computed again unseen.
        wants_all = request.params.prompt_logprobs is not None and request.generated == 0
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


def undrafted(window: Window) -> Window:
    """The window without its drafts."""
    wanted = Wanted.LAST if window.wanted is Wanted.DRAFTS else window.wanted
    return replace(window, tokens=window.tokens[: window.known], drafts=0, parents=(), wanted=wanted)


def shortened(window: Window, rows: int) -> Window:
    """The first rows of a prompt's window."""
    wanted = window.wanted if window.wanted is Wanted.ALL else Wanted.NONE
    return replace(window, tokens=window.tokens[:rows], wanted=wanted)
