"""Exclusive roles, the batch, and the keys plugins share. Each role is one object; core has a plain default of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from byref.contract.context import Kind
from byref.contract.requests import Request
from byref.contract.specs import PoolSpec
from byref.contract.state import Key, Memo, State
from byref.contract.step import Grant, LogitRows, Outcome, Step, Window

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from byref.contract.context import ForwardContext

TARGET = "target"
DRAFT = "draft"

KV_REWIND = "kv.rewind"
"""Capability: `KV.commit` keeps any path of a window's rows."""
KV_POOLS = "kv.pools"
"""Capability: strided, windowed and per-request pools of any role."""
KV_PREFIX = "kv.prefix"
"""Capability: `KV.match` finds computed prefixes."""
SPECULATION = "speculation"
"""Capability: a `Speculator` that drafts."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The target's tokens, for plugins that look at text."""

    end_ids: frozenset[int]
    """Tokens that end a turn unless a request ignores them."""
    definition: Callable[[], str]
    """The tokenizer as a `tokenizer.json`, of the `tokenizers` library."""


@dataclass(frozen=True, slots=True)
class RoleSizing:
    """One role's model, as far as memory goes."""

    name: str
    id: int
    vocabulary: int
    """Rows of its vocabulary projection, padding included."""
    hidden: int
    """Width of the hidden state that a forward of it takes as input; 0 takes none."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The one record every buffer is sized from. Frozen before the first allocation."""

    device: torch.device
    dtype: torch.dtype
    max_requests: int
    """Requests running at once. Request rows go from 1 to this; row 0 is the sink."""
    max_rows: int
    """Rows of one forward."""
    max_context: int
    """Tokens of one request, drafts in flight not included."""
    max_drafts: int
    """Drafts in one window."""
    kv_tokens: int
    """Tokens that the KV role has room for, over all requests."""
    captured: frozenset[Kind]
    """Kinds of forward that are captured: bound calls must be capturable in these."""
    roles: tuple[RoleSizing, ...]
    pools: tuple[PoolSpec, ...]
    vocabulary: Vocabulary | None = None
    """Of an engine always; None where memory alone is sized."""

    def role(self, name: str) -> RoleSizing:
        """The role called `name`."""
        return next(role for role in self.roles if role.name == name)


class Pool(Protocol):
    """Memory of one `PoolSpec`. Slot 0 is a sink: padding writes there; what it holds is finite and means nothing."""

    @property
    def spec(self) -> PoolSpec:
        """What it was made from."""
        ...

    @property
    def space(self) -> Hashable:
        """Pools of equal space give equal slots: one computation serves every layer of a forward."""
        ...

    @property
    def data(self) -> Tensor:
        """[slots, stored width] as stored, lent for one call."""
        ...

    def write(self, ctx: ForwardContext, values: Tensor) -> None:
        """Store one value per row of the forward, [rows, width]; a strided pool keeps those that close an entry."""
        ...

    def slots(self, rows: Tensor, index: Tensor) -> Tensor:
        """Slots of entries `index` of request rows `rows` (int64, broadcast together). In a per-request pool
        `index` is the cache index of the token after which the state stood, and only the last kept one and
        those that this forward wrote are promised. What is outside the request or no longer kept is slot 0."""
        ...

    def read(self, slots: Tensor) -> Tensor:
        """Values [*slots.shape, width], decoded."""
        ...


class KV(ABC):
    """Owns all per-request memory. Host side; device code goes through `Pool` and bound attention."""

    @abstractmethod
    def pool(self, role: str, name: str) -> Pool:
        """The pool made from the spec `name` of `role`."""

    @abstractmethod
    def refusal(self, request: Request) -> str | None:
        """Why the request can never fit, in a sentence with both numbers; None if it can."""

    @abstractmethod
    def match(self, request: Request) -> int:
        """Leading prompt tokens whose entries are there already, at most len(prompt) - 1. Called once per
        admission, before `reserve`; the KV holds them for the request from then on."""

    @abstractmethod
    def reserve(self, request: Request, n: int) -> Grant | None:
        """Room for `n` rows after the computed ones, and where there is a draft role for `max_drafts` rows of it beyond
        them; None when there is none now."""

    def follows(self, request: Request) -> bool:
        """Whether `reserve` refused the request only because another computes what it will find: those behind it in
        the queue need not wait with it."""
        return False

    @abstractmethod
    def commit(self, request: Request, path: Sequence[int]) -> None:
        """Keep rows `path` (strictly increasing, from 0) of the request's last target window, in order, in every pool
        of every role, and forget its other rows. `request.lengths` still holds the lengths before the window;
        core updates it afterwards."""

    @abstractmethod
    def fork(self, parent: Request, child: Request) -> None:
        """Give `child`, which has its row, the parent's computed entries; later writes of one are not seen by the
        other. Raises a RequestError where there is no room."""

    @abstractmethod
    def release(self, request: Request) -> None:
        """Take everything back; of a request that waits, what is kept of it since it was preempted."""

    @abstractmethod
    def usage(self) -> Mapping[str, int]:
        """Figures; at least `used_tokens` (0 when idle) and `capacity_tokens`."""


class RunForward(Protocol):
    """Runs one forward of a role and returns its logits [wanted rows, vocabulary], valid until the role's next forward.

    `hidden` is the caller's persistent buffer [most rows, input width], for a role whose model takes a hidden state;
    its owner refills it in `prepare_forward` from `Batch.from_row`. Core notes the known rows (not the drafts) of
    each window as computed in `request.lengths[role]`.
    """

    def __call__(
        self, role: str, windows: Sequence[Window], hidden: Tensor | None = None, draft_step: int = 0
    ) -> Tensor: ...


class Speculator(ABC):
    """Drafts, and says which drafts stay. The default drafts nothing: ordinary decoding is that path."""

    @abstractmethod
    def width(self, request: Request) -> Sequence[int]:
        """Drafts to verify in the request's next window (empty: none)."""

    def parents(self, request: Request) -> Sequence[int]:
        """The tree of those drafts: for each, the draft it continues, -1 for the newest token. Empty is a chain."""
        return ()

    @abstractmethod
    def verify(self, rows: LogitRows, chosen: Sequence[int]) -> Outcome:
        """Which rows stay, for every window that `rows` holds rows of. `chosen[i]` is the token that row i's
        processed distribution yields under its noise; -1 for a row that only scores a prompt token."""

    @abstractmethod
    def propose(self, step: Step, forward: RunForward) -> None:
        """Prepare drafts for the requests of `step` that go on, by draft forwards if it needs them."""


class Policy(ABC):
    """Orders requests. Budgets, chunks and reservation stay in core."""

    @abstractmethod
    def rank(self, request: Request) -> tuple[float, ...]:
        """Smaller is served first."""

    @abstractmethod
    def victim(self, running: Sequence[Request]) -> Request | None:
        """Whom to preempt when memory is short; None waits instead."""


class Batch(State, ABC):
    """The rows of a role's forward: core's own state. Methods lend persistent tensors narrowed to the forward.

    Padding rows belong to request row 0 and slot 0. Lengths have one owner, this.
    """

    @abstractmethod
    def ids(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: input ids."""

    @abstractmethod
    def positions(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: rotary positions; start + depth in a tree."""

    @abstractmethod
    def index(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: cache index; start + row in a tree."""

    @abstractmethod
    def request_of_row(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: the row's request within the forward, 0 .. requests - 1."""

    @abstractmethod
    def rows(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: request row of each row; 0 for padding."""

    @abstractmethod
    def request_rows(self, ctx: ForwardContext) -> Tensor:
        """[requests] int64: request row of each request; 0 for padding."""

    @abstractmethod
    def starts(self, ctx: ForwardContext) -> Tensor:
        """[requests + 1] int64: first row of each request, then the number of rows."""

    @abstractmethod
    def offsets(self, ctx: ForwardContext) -> Tensor:
        """[requests] int64: cache entries before the request's first row."""

    @abstractmethod
    def lengths(self, ctx: ForwardContext) -> Tensor:
        """[requests] int64: cache entries with this forward's rows; 0 for padding."""

    @abstractmethod
    def frontier(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: a row sees every cache index below this; its own index + 1 outside trees."""

    @abstractmethod
    def ancestors(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: bit j set: the row also sees cache index frontier + j. 0 outside trees."""

    @abstractmethod
    def from_row(self, ctx: ForwardContext) -> Tensor:
        """[rows] int64: the row of the forward before (of any role) that this row continues; 0 where none."""

    @abstractmethod
    def wanted(self, ctx: ForwardContext) -> Tensor:
        """[logit rows] int64: the rows that reach the vocabulary projection."""

    @abstractmethod
    def host(self) -> tuple[Window, ...]:
        """The live windows as host data, for eager callables. One that reads them sets `capturable = False`."""


class Scratch(Memo):
    """Core's forward memo: values that several layers of one forward share (masks, rotary tables)."""

    key: ClassVar[Key[Scratch]]


BATCH: Key[Batch] = Key("batch", Batch)
SCRATCH: Key[Scratch] = Key("scratch", Scratch)
Batch.key = BATCH
Scratch.key = SCRATCH


class Parameters(Protocol):
    """Weights by the checkpoint's (Hugging Face) names. Each is read once and claimed by the reader."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint carries it."""
        ...

    def load(self, names: Sequence[str], shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """The tensors stacked along their first dimension, in the engine's dtype or `dtype`, on its device.

        Raises:
            ModelError: a tensor is missing, or the shapes do not add up; file and tensor are named.
        """
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """What the answer to a spec may reach."""

    sizing: Sizing
    kv: KV
    parameters: Parameters
    resolve: Callable[[Any], Any]
    """Answers a finer spec: the coarse answer is composed from these."""
