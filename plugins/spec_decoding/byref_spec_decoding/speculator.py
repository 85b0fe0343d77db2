"""The `Speculator` role: which drafts there are, which stay. Knows drafters by their interface, and no model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from byref.contract.errors import PluginError
from byref.contract.requests import Reason, Request
from byref.contract.roles import DRAFT, TARGET, RunForward
from byref.contract.state import Key, State
from byref.contract.step import LogitRows, Outcome, Step, Window
from byref.engine.speculator import PlainSpeculator
from byref_spec_decoding.drafter import Draft, Drafter, Round, Want
from byref_spec_decoding.figures import Figures
from byref_spec_decoding.odds import decide
from byref_spec_decoding.options import RequestOptions
from byref_spec_decoding.pace import Offer, Pace

NONE = Draft(())


class SpecSpeculator(State, PlainSpeculator):
    """Keeps each request's draft until it is verified. What stays is settled by `PlainSpeculator.verify`: a draft stays
    iff it is the token that its row's processed distribution yields under the noise of (seed, position), or by
    rejection sampling where that is asked for.

    Args:
        name: the plugin's, under which requests carry options.
        drafter: proposes.
        pace: sets widths.
        most: drafts in one window.
        rejects: drafts are kept by rejection sampling.
    """

    key: ClassVar[Key[SpecSpeculator]]

    def __init__(self, name: str, drafter: Drafter, pace: Pace, most: int, *, rejects: bool = False) -> None:
        self._name, self._drafter, self._pace, self._most = name, drafter, pace, most
        self._rejects = rejects
        self._drafts: dict[str, tuple[int, Draft]] = {}
        """By request id: how many tokens it had, and the draft of what follows them."""
        self._right: dict[str, int] = {}
        """By request id: drafts that its last window proved right."""
        self._dropped: set[str] = set()
        self._began, self._rows, self._drafted = 0.0, 0, 0
        self.figures = Figures()

    def draft(self, request: Request) -> Draft:
        """Its draft; none where the request has changed since."""
        made_at, draft = self._drafts.get(request.id, (-1, NONE))
        return draft if made_at == len(request.tokens) else NONE

    def width(self, request: Request) -> Sequence[int]:
        return self.draft(request).tokens

    def parents(self, request: Request) -> Sequence[int]:
        return self.draft(request).parents

    def begin(self, step: Step) -> None:
        """A step's forward is about to run."""
        decoding = not any(window.prompt for window in step.plan.windows)
        self._rows = sum(len(window.tokens) for window in step.plan.windows) if decoding else 0
        self._drafted = sum(window.drafts for window in step.plan.windows)
        self._began = time.perf_counter()

    def verify(self, rows: LogitRows, chosen: Sequence[int]) -> Outcome:
        if self._rows:
            self._pace.stepped(self._rows, self._drafted, time.perf_counter() - self._began)
        windows = {info.request.id: info.window for info in rows.infos}
        if self._rejects:
            chosen = decide(rows, chosen, {id: draft.odds for id, (_, draft) in self._drafts.items()})
        outcome = super().verify(rows, chosen)
        self._right = {id: len(verdict.path) - windows[id].known for id, verdict in outcome.items()}
        return outcome

    def commit(self, step: Step) -> None:
        """What was accepted is counted and shown to the drafter."""
        for window in step.plan.windows:
            if window.drafts:
                self._count(step, window)
            if step.outcome[window.request].tokens and window.request not in step.finished:
                self._drafter.accepted(step.requests[window.request])

    def _count(self, step: Step, window: Window) -> None:
        right = self._right[window.request]
        draft = self._drafts.get(window.request, (0, NONE))[1]
        deepest = max((len(window.lineage(row)) for row in range(window.known, len(window.tokens))), default=0)
        self._pace.verified(window.request, draft.key, deepest - window.known, right)
        # What ends a request cuts drafts that were right: they say what drafts are worth, and are no tokens.
        self.figures.count(window.drafts, min(len(step.outcome[window.request].tokens), right))

    def propose(self, step: Step, forward: RunForward) -> None:
        began = time.perf_counter()
        wants = self._wants(step)
        behind = any(self._behind(want.request) for want in wants if want.most)
        proposed = self._drafter.propose(Round(step, wants, forward)) if wants else {}
        drafts = {id: draft for id, draft in proposed.items() if draft.tokens}
        self._keep(wants, drafts)
        seconds = time.perf_counter() - began
        if self._drafter.runs_forwards and drafts:
            depth = max(draft.depth for draft in drafts.values())
            self._pace.drafted(len(drafts), depth, seconds, late=behind)
        self.figures.seconds += seconds

    def _behind(self, request: Request) -> bool:
        """Whether a draft model has more to catch up with than what one window accepts."""
        return len(request.tokens) - request.lengths.get(DRAFT, 0) > self._most + 1

    def _wants(self, step: Step) -> list[Want]:
        going = [request for id, request in step.requests.items() if id not in step.finished]
        most = {request.id: self._bound(request, step) for request in going}
        if self._drafter.runs_forwards:
            offers = [Offer(id, n) for id, n in most.items()]
            most = dict(zip(most, self._pace.widths(offers, len(offers)), strict=True))
        if self._drafter.fed:
            self._drop(going)
        return [Want(request, most[request.id], self._rejects) for request in going if request.id not in self._dropped]

    def _bound(self, request: Request, step: Step) -> int:
        """The most drafts that the request may have next: none inside its prompt, or by its own options."""
        if request.id in self._dropped or not step.outcome[request.id].tokens:
            return 0
        asked = self._asked(request)
        room = min(request.limit, self._drafter.sizing.max_context) - len(request.tokens) - 1
        return max(min(self._most if asked is None else asked, self._most, room), 0)

    def _asked(self, request: Request) -> int | None:
        options = request.options.get(self._name)
        return options.max_draft_tokens if isinstance(options, RequestOptions) else None

    def _drop(self, going: Sequence[Request]) -> None:
        """Requests whose drafts do not pay leave a fed drafter for good: it would run for them all the same."""
        for request in going:
            if request.id not in self._dropped and self._pace.hopeless(request.id):
                self._leave_out(request)

    def _leave_out(self, request: Request) -> None:
        self._dropped.add(request.id)
        self._drafter.dropped(request)

    def _keep(self, wants: Sequence[Want], drafts: Mapping[str, Draft]) -> None:
        vocabulary = self._drafter.sizing.role(TARGET).vocabulary
        for draft in drafts.values():
            self._check(draft, vocabulary)
        found = [(want, drafts[want.request.id].cut(want.most)) for want in wants if want.request.id in drafts]
        widths = [len(draft.tokens) for _, draft in found]
        if not self._drafter.runs_forwards:
            offers = [
                Offer(want.request.id, width, draft.key) for (want, draft), width in zip(found, widths, strict=True)
            ]
            widths = self._pace.widths(offers, len(wants))
        for (want, draft), width in zip(found, widths, strict=True):
            self._drafts[want.request.id] = (len(want.request.tokens), draft.cut(width))

    def _check(self, draft: Draft, vocabulary: int) -> None:
        """Tokens are the target's; a tree is drawn from its root, and only where trees were asked for."""
        name = type(self._drafter).__name__
        wrong = next((id for id in draft.tokens if not 0 <= id < vocabulary), None)
        if wrong is not None:
            what = f"the drafter {name} gives the token {wrong}, and there are {vocabulary}"
            raise PluginError(what, hint="ids of the target's vocabulary")
        ordered = all(-1 <= parent < i for i, parent in enumerate(draft.parents))
        if draft.parents and not (self._drafter.tree and ordered and len(draft.parents) == len(draft.tokens)):
            raise PluginError(
                f"the drafter {name} gives {len(draft.tokens)} tokens the parents {draft.parents}",
                hint="one parent for each token, -1 or the index of an earlier one; none at all where `tree` is false",
            )

    def added(self, request: Request) -> None:
        """A request runs."""
        self._drafter.added(request)
        if self._drafter.fed and self._asked(request) == 0:
            self._leave_out(request)

    def released(self, request: Request, reason: Reason) -> None:
        """A request no longer runs; drafts outstanding are dropped."""
        self._drafts.pop(request.id, None)
        self._dropped.discard(request.id)
        self._pace.forget(request.id)
        self._drafter.released(request, reason)


SpecSpeculator.key = Key("spec_decoding.speculator", SpecSpeculator)
