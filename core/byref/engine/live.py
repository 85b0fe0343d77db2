"""One request as the engine follows it: text, log-probabilities, times. Knows no tensor and no window."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from byref.contract.errors import ByrefError
from byref.contract.requests import Reason, Request
from byref.engine.processors import Processor
from byref.text import Detokenizer, StopScanner


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one request."""

    queued: float
    """From arrival to its first row."""
    first_token: float
    """From arrival to its first token."""
    total: float
    """From arrival to its end."""

    def decode_rate(self, tokens: int) -> float:
        """Tokens per second after the first."""
        span = self.total - self.first_token
        return (tokens - 1) / span if tokens > 1 and span > 0 else 0.0


@dataclass(slots=True)
class DraftFigures:
    """What speculation did for one request."""

    windows: int = 0
    """Forwards that verified a draft of it."""
    drafted: int = 0
    """Drafts verified."""
    accepted: int = 0
    """Drafts that became its tokens."""
    accepted_at: list[int] = field(default_factory=list)
    """By position within the window: how often that many drafts, one after the other, were accepted."""
    seconds: float = 0.0
    """Its share of the time in which drafts were proposed."""

    @property
    def mean_accepted(self) -> float:
        """Drafts accepted per window that had any."""
        return self.accepted / self.windows if self.windows else 0.0

    def count(self, drafted: int, accepted: int) -> None:
        """One window was verified."""
        if drafted:
            self.windows += 1
            self.drafted += drafted
            self.accepted += accepted
            self.accepted_at += [0] * (accepted - len(self.accepted_at))
            for i in range(accepted):
                self.accepted_at[i] += 1


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    request_id: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finished: Reason
    cached_tokens: int
    timings: Timings
    logprobs: tuple[dict[int, float], ...] = ()
    """Per token where asked for: log-probability of the token first, then of the likeliest ones."""
    prompt_logprobs: tuple[dict[int, float] | None, ...] = ()
    """Per prompt token where asked for; the first has none."""
    drafts: DraftFigures = field(default_factory=DraftFigures)
    error: ByrefError | None = None
    """Why it failed, where `finished` is FAILED."""
    choice: int = 0
    """Which of several choices."""
    n: int = 1
    """Choices of the request."""
    others: tuple[Completion, ...] = ()
    """Of choice 0: the further ones, where the request asked for n > 1."""

    @property
    def choices(self) -> tuple[Completion, ...]:
        """Every choice, this one first."""
        return (self, *self.others)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to a request."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    completion: Completion | None = None
    """On the last chunk: the whole request, all its choices."""
    choice: int = 0
    """Which of several choices it adds to."""
    finished: Reason | None = None
    """Why this choice ended, on its last chunk."""
    drafted: int = 0
    """So many of `token_ids`, from the first on, were drafts that the step verified."""
    logprobs: tuple[dict[int, float], ...] = ()
    """Of `token_ids`, where asked for: as `Completion.logprobs`."""
    prompt_logprobs: tuple[dict[int, float] | None, ...] = ()
    """On a choice's first chunk, where asked for: as `Completion.prompt_logprobs`."""


@dataclass(slots=True, eq=False)
class Live:
    """A request from arrival to its end."""

    request: Request
    detokenizer: Detokenizer
    stops: StopScanner
    end_ids: frozenset[int]
    processors: tuple[Processor, ...] = ()
    group: str = ""
    """The request's id as its client knows it."""
    choice: int = 0
    error: ByrefError | None = None
    arrived: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first: float = 0.0
    text: list[str] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    prompt_logprobs: dict[int, dict[int, float]] = field(default_factory=dict)
    drafts: DraftFigures = field(default_factory=DraftFigures)
    candidates: dict[int, dict[int, float]] = field(default_factory=dict)
    """Per row of the current window: the scores of the token it chose."""

    def start(self) -> None:
        """It has its row; after a preemption the first start counts."""
        self.started = self.started or time.perf_counter()

    def keep_logprobs(self, rows: Sequence[int]) -> None:
        """The tokens that these rows chose were accepted."""
        self.logprobs += [self.candidates[row] for row in rows if row in self.candidates]
        self.candidates.clear()

    def accept(self, tokens: Sequence[int], limit: int) -> tuple[int, str, Reason | None]:
        """Take tokens until one ends the request: (how many are kept, their text, why it ends).

        Nothing after the end is kept: no token, no text (faults S01 and S14).
        """
        request = self.request
        pieces: list[str] = []
        if tokens and not self.first:
            self.first = time.perf_counter()
        for n, token in enumerate(tokens, start=1):
            request.tokens.append(token)
            if token in self.end_ids:
                return n, self._close(pieces), Reason.STOP
            text, stopped = self.detokenizer.push(token), False
            if request.generated > request.params.min_tokens:
                text, stopped = self.stops.push(text)
            pieces.append(text)
            if stopped:
                return n, self._keep(pieces), Reason.STOP
            if request.generated >= request.params.max_tokens or len(request.tokens) >= limit:
                return n, self._close(pieces), Reason.LENGTH
        return len(tokens), self._keep(pieces), None

    def _close(self, pieces: list[str]) -> str:
        """What was held back is text after all, unless it completes a stop string."""
        text, stopped = self.stops.push(self.detokenizer.flush())
        pieces.append(text if stopped else text + self.stops.flush())
        return self._keep(pieces)

    def _keep(self, pieces: list[str]) -> str:
        text = "".join(pieces)
        self.text.append(text)
        return text

    def fail(self, error: ByrefError) -> Reason:
        """Note why it fails."""
        self.error = error
        return Reason.FAILED

    def chunk(
        self, text: str, token_ids: tuple[int, ...], completion: Completion | None = None, drafted: int = 0
    ) -> Chunk:
        """What a step added."""
        reason = completion.finished if completion else None
        scores = tuple(self.logprobs[-len(token_ids) :]) if token_ids else ()
        first = bool(token_ids) and self.request.generated == len(token_ids)
        return Chunk(
            request_id=self.group or self.request.id,
            text=text,
            token_ids=token_ids,
            completion=completion,
            choice=self.choice,
            finished=reason,
            drafted=drafted,
            logprobs=scores,
            prompt_logprobs=self._of_prompt() if first else (),
        )

    def _of_prompt(self) -> tuple[dict[int, float] | None, ...]:
        request = self.request
        asked = request.params.prompt_logprobs is not None
        return tuple(self.prompt_logprobs.get(i) for i in range(len(request.prompt))) if asked else ()

    def complete(self, reason: Reason) -> Completion:
        """The result, now."""
        now, request = time.perf_counter(), self.request
        return Completion(
            request_id=self.group or request.id,
            prompt_ids=request.prompt,
            token_ids=tuple(request.tokens[len(request.prompt) :]),
            text="".join(self.text),
            finished=reason,
            cached_tokens=request.cached_tokens,
            timings=Timings(
                (self.started or now) - self.arrived, (self.first or now) - self.arrived, now - self.arrived
            ),
            logprobs=tuple(self.logprobs[: request.generated]),
            prompt_logprobs=self._of_prompt(),
            drafts=self.drafts,
            error=self.error if reason is Reason.FAILED else None,
            choice=self.choice,
            n=request.params.n,
        )
