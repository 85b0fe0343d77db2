"""The nine steps of the engine. Knows the order; each step's work is another module's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.errors import PluginError, RequestError
from byref.contract.requests import Reason, Request
from byref.contract.roles import KV, TARGET, Speculator
from byref.contract.step import LogitRows, Outcome, RowInfo, Step, StepReport, Verdict, Window
from byref.engine.forwards import Forwards
from byref.engine.layout import kind_of
from byref.engine.live import Chunk, Live
from byref.engine.plan import Planner
from byref.engine.processing import NO_TOKEN, process, token_logprobs


class StepHooks(Protocol):
    """The hooks that a step calls."""

    def has(self, hook: str) -> bool: ...

    def prepare_step(self, step: Step) -> None: ...

    def prepare_forward(self, ctx: ForwardContext) -> None: ...

    def adjust_logits(self, rows: LogitRows) -> None: ...

    def commit(self, step: Step) -> None: ...

    def step_done(self, report: StepReport) -> None: ...


@dataclass(slots=True)
class Runner:
    """Runs steps over the planner's requests."""

    planner: Planner
    forwards: Forwards
    kv: KV
    speculator: Speculator
    hooks: StepHooks
    live: Mapping[str, Live]
    vocabulary: int
    limit: int
    """Most tokens of one request."""
    stuck: int = 0
    """Steps in a row in which nobody was granted anything."""

    def step(self) -> list[Chunk]:
        """One step: plan, prepare, forward, process, verify, settle, commit, propose, emit."""
        began, self.forwards.seconds = time.perf_counter(), 0.0
        plan = self.planner.plan()
        if not plan.windows:
            self._check_stuck()
            return []
        self.stuck = 0
        step = Step(plan, {w.request: self.live[w.request].request for w in plan.windows})
        self.hooks.prepare_step(step)
        logits = self.forwards(TARGET, plan.windows)
        rows, chosen = self._process(step, logits)
        outcome = {**self.speculator.verify(rows, chosen), **_unfinished(step)}
        self._score(logits, rows.infos, outcome)
        chunks = self._settle(step, outcome)
        self._commit(step)
        return self._emit(step, chunks, began, self._propose(step))

    def _check_stuck(self) -> None:
        """Two steps in a row that grant nobody anything: no later one would be another. One alone says little, since a
        request that fails while it is planned may be the one that others waited for."""
        stuck = [*self.planner.running, *self.planner.waiting]
        self.stuck = self.stuck + 1 if stuck else 0
        if self.stuck > 1:
            raise PluginError(
                f"the KV has no room for request {stuck[0].id}, which it did not refuse, and nobody gives any up",
                where=f"{type(self.kv).__name__}.reserve",
                hint="refuse in KV.refusal what can never fit",
            )

    def _process(self, step: Step, logits: Tensor) -> tuple[LogitRows, list[int]]:
        infos = tuple(info for w in step.plan.windows for info in row_infos(w, step.requests[w.request]))
        logits = logits[: len(infos)]
        adjust = self.hooks.adjust_logits if self.hooks.has("adjust_logits") else None
        lives = [self.live[info.request.id] for info in infos]
        asked = {i: live.processors for i, live in enumerate(lives) if live.processors and not infos[i].is_prompt}
        return process(logits, infos, self.vocabulary, asked, adjust)

    def _score(self, logits: Tensor, infos: tuple[RowInfo, ...], outcome: Outcome) -> None:
        """Log-probabilities of prompt tokens, and of those that verification kept: what ends a request may cut them."""
        for row, info in zip(logits[: len(infos), : self.vocabulary], infos, strict=True):
            live = self.live[info.request.id]
            params, verdict = info.request.params, outcome[info.request.id]
            if info.is_prompt and params.prompt_logprobs is not None:
                actual = info.request.prompt[info.position]
                live.prompt_logprobs[info.position] = token_logprobs(row, actual, params.prompt_logprobs)
            elif not info.is_prompt and params.logprobs is not None and info.row in verdict.path:
                token = verdict.tokens[len(info.drafts)]
                if token != NO_TOKEN:
                    live.candidates[info.row] = token_logprobs(row, token, params.logprobs)

    def _settle(self, step: Step, outcome: Outcome) -> dict[str, Chunk]:
        """End tokens, limits and stop strings cut the outcome before anything is kept."""
        settled: dict[str, Verdict] = {}
        finished: dict[str, Reason] = {}
        chunks: dict[str, Chunk] = {}
        for window in step.plan.windows:
            verdict, live = outcome[window.request], self.live[window.request]
            kept, text, reason = live.accept(_until_none(verdict.tokens), self.limit)
            if reason is None and NO_TOKEN in verdict.tokens:
                reason = live.fail(_no_token(live.request))
            live.keep_logprobs(verdict.path[window.known - 1 :][:kept])
            path = verdict.path[: window.known + kept - 1] if verdict.tokens else verdict.path
            settled[window.request] = Verdict(path, verdict.tokens[:kept])
            drafted = min(kept, len(verdict.path) - window.known) if kept else 0
            live.drafts.count(window.drafts, drafted)
            if reason:
                finished[window.request] = reason
            if kept:
                chunks[window.request] = live.chunk(text, verdict.tokens[:kept], drafted=drafted)
        step.outcome, step.finished = settled, finished
        return chunks

    def _commit(self, step: Step) -> None:
        for id, verdict in step.outcome.items():
            request = step.requests[id]
            self.kv.commit(request, verdict.path)
            end = request.computed + len(verdict.path)
            request.lengths = {r: end if r == TARGET else min(n, end) for r, n in request.lengths.items()}
        self.hooks.commit(step)

    def _propose(self, step: Step) -> float:
        """Let the speculator draft; the seconds it took, which all that go on share."""
        began = time.perf_counter()
        self.speculator.propose(step, partial(self._draft, step))
        seconds = time.perf_counter() - began
        served = [self.live[id].drafts for id in step.outcome if id not in step.finished]
        for drafts in served:
            drafts.seconds += seconds / len(served)
        return seconds

    def _draft(
        self, step: Step, role: str, windows: Sequence[Window], hidden: Tensor | None = None, draft_step: int = 0
    ) -> Tensor:
        """A forward of a drafter's role; the rows up to its last known one count as computed, drafts do not."""
        logits = self.forwards(role, windows, hidden, draft_step)
        for window in windows:
            step.requests[window.request].lengths[role] = window.start + window.known
        return logits

    def _emit(self, step: Step, chunks: dict[str, Chunk], began: float, draft_seconds: float) -> list[Chunk]:
        drafts_kept = sum(chunk.drafted for chunk in chunks.values())
        for id, reason in step.finished.items():
            chunks[id] = self.finish(step.requests[id], reason, chunks.get(id))
        plan, outcome = step.plan, step.outcome
        self.hooks.step_done(
            StepReport(
                number=plan.number,
                kind=kind_of(plan.windows),
                rows=sum(len(w.tokens) for w in plan.windows),
                requests=len(plan.windows),
                seconds=time.perf_counter() - began,
                forward_seconds=self.forwards.seconds,
                draft_seconds=draft_seconds,
                accepted=sum(len(verdict.tokens) for verdict in outcome.values()),
                drafted=sum(w.drafts for w in plan.windows),
                drafts_kept=drafts_kept,
                waiting=len(self.planner.waiting),
                running=len(self.planner.running),
            )
        )
        return list(chunks.values())

    def finish(self, request: Request, reason: Reason, last: Chunk | None = None) -> Chunk:
        """Release a running request and close it with its completion."""
        live = self.live[request.id]
        try:
            self.planner.release(request, reason)
        except RequestError as raised:
            reason = live.fail(raised)
        text, ids, drafted = (last.text, last.token_ids, last.drafted) if last else ("", (), 0)
        return live.chunk(text, ids, live.complete(reason), drafted)


def row_infos(window: Window, request: Request) -> list[RowInfo]:
    """The wanted rows of a window, each with its hypothetical prefix."""
    infos = []
    for row in window.wanted_rows():
        lineage = window.lineage(row)[window.known :] if row >= window.known else ()
        drafts = tuple(window.tokens[r] for r in lineage)
        position = window.start + (row if row < window.known else window.known - 1 + len(drafts)) + 1
        infos.append(RowInfo(request, window, row, position, drafts))
    return infos


def _until_none(tokens: tuple[int, ...]) -> tuple[int, ...]:
    return tokens[: tokens.index(NO_TOKEN)] if NO_TOKEN in tokens else tokens


def _no_token(request: Request) -> RequestError:
    return RequestError(
        f"no token is left to choose at position {len(request.tokens)}: all are masked, or their logits are no numbers",
        where=f"request {request.id}",
        hint="allow more tokens, or see which plugin masks them",
    )


def _unfinished(step: Step) -> dict[str, Verdict]:
    """Windows in the middle of a prompt: every row stays, no token is chosen."""
    middle = [w for w in step.plan.windows if w.start + w.known < len(step.requests[w.request].tokens)]
    return {w.request: Verdict(tuple(range(len(w.tokens))), ()) for w in middle}
