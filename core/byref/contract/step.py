"""The data of one engine step: windows, grants, rows and what became of them. The plan is plain and picklable."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from byref.contract.context import Kind
from byref.contract.requests import Reason, Request

if TYPE_CHECKING:
    from torch import Tensor

MAX_TREE = 63
"""Most drafts in one window: a row's ancestors are the bits of one int64."""


class Wanted(enum.Enum):
    """Which rows of a window reach the vocabulary projection."""

    NONE = "none"
    LAST = "last"
    DRAFTS = "drafts"
    """The newest known token and every draft."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Window:
    """The rows one request contributes to one forward."""

    request: str
    row: int
    role: str
    start: int
    """Cache index of the first row; entries below it are computed."""
    tokens: tuple[int, ...]
    """Input ids of the rows: known tokens, then drafts."""
    drafts: int = 0
    """So many of the last rows are drafts."""
    parents: tuple[int, ...] = ()
    """For each draft the row (in this window) it continues; empty is a chain."""
    wanted: Wanted = Wanted.LAST
    prompt: bool = False
    """Whether it fills the cache up to the newest token (a prompt, or what preemption dropped)."""
    from_rows: tuple[int, ...] = ()
    """For each row the row, in the same request's window of the forward before (of any role), that it continues;
    empty where it continues none."""

    @property
    def known(self) -> int:
        """Rows that are not drafts."""
        return len(self.tokens) - self.drafts

    @property
    def end(self) -> int:
        """Cache index just after the last row."""
        return self.start + len(self.tokens)

    @property
    def is_tree(self) -> bool:
        """Whether some draft continues another row than the one before it."""
        return any(parent != self.known - 1 + i for i, parent in enumerate(self.parents))

    def parent(self, row: int) -> int:
        """The row that `row` continues; -1 for the first."""
        draft = row - self.known
        return self.parents[draft] if draft >= 0 and self.parents else row - 1

    def lineage(self, row: int) -> tuple[int, ...]:
        """Rows from the first to `row` along parents, `row` included."""
        path = [row]
        while path[-1] > 0:
            path.append(self.parent(path[-1]))
        return tuple(reversed(path))

    def wanted_rows(self) -> range:
        """Rows whose logits are wanted."""
        n = len(self.tokens)
        first = {Wanted.NONE: n, Wanted.LAST: n - 1, Wanted.DRAFTS: self.known - 1, Wanted.ALL: 0}[self.wanted]
        return range(first, n)


@dataclass(frozen=True, slots=True)
class Grant:
    """Room for one request's coming rows. `detail` is the KV's own plain data."""

    request: str
    upto: int
    """Cache entries below this index may be written."""
    pause: int = 0
    """Where the KV would like a prompt's window to end, to keep the state that stands there; 0 nowhere."""
    detail: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes: plain data, equal on every rank."""

    number: int
    windows: tuple[Window, ...]
    grants: tuple[Grant, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification keeps of one window."""

    path: tuple[int, ...]
    """Rows kept, in order along parents, from row 0."""
    tokens: tuple[int, ...]
    """Tokens accepted: the drafts on the path, then the one chosen after its last row. Empty in the
    middle of a prompt."""


Outcome = Mapping[str, Verdict]
"""Per request id."""


@dataclass(slots=True)
class Step:
    """One engine step as host hooks see it."""

    plan: StepPlan
    requests: Mapping[str, Request]
    outcome: Outcome = field(default_factory=dict)
    """Filled between processing and `commit`, already cut by stop conditions and limits."""
    finished: Mapping[str, Reason] = field(default_factory=dict)
    """Requests that end with this step; filled with `outcome`."""


@dataclass(frozen=True, slots=True)
class RowInfo:
    """One row of logits, on the host."""

    request: Request
    window: Window
    row: int
    """Row within the window."""
    position: int
    """Index in the sequence of the token these logits choose."""
    drafts: tuple[int, ...]
    """Drafts before it along its parents: with `request.tokens` its hypothetical prefix."""

    @property
    def is_prompt(self) -> bool:
        """Whether the token it predicts is a prompt token."""
        return self.position < len(self.request.prompt)


class LogitRows:
    """The wanted rows of a target forward: one `RowInfo` and one line of `logits` each."""

    def __init__(self, logits: Tensor, infos: tuple[RowInfo, ...], edited: Mapping[int, Tensor] | None = None) -> None:
        self.logits = logits
        """[rows, vocabulary]. In `adjust_logits` fp32 and edited in place; in `verify`, where no plugin adjusts, the
        model's own."""
        self.infos = infos
        self._edited = edited or {}

    def processed(self, i: int) -> Tensor:
        """[vocabulary] of row i: what penalties, bans, bias and plugins made of it; before temperature and truncation.
        In fp32 where anything was edited, else as the model gave it. To be read only."""
        return self._edited.get(i, self.logits[i])

    def __iter__(self) -> Iterator[tuple[RowInfo, Tensor]]:
        return zip(self.infos, self.logits, strict=True)

    def __len__(self) -> int:
        return len(self.infos)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Figures of a finished step."""

    number: int
    kind: Kind
    rows: int
    requests: int
    seconds: float
    forward_seconds: float
    """Time inside target and draft forwards."""
    draft_seconds: float
    """Time that the speculator took to propose drafts, its forwards included."""
    accepted: int
    """Tokens accepted in the step."""
    drafted: int
    """Drafts that were verified."""
    drafts_kept: int
    """Those of them that were accepted."""
    waiting: int
    running: int
