"""Drives a KV as the engine does, without a model. Knows windows and what every entry must hold; not how it is kept.

What a row writes is a function of the tokens up to it, so whatever an operation does (share, copy, compact), what
must be read back follows from the request's tokens alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byref.capture import Eager
from byref.contract.context import ForwardContext, StateMap
from byref.contract.errors import RequestError
from byref.contract.requests import Request, SamplingParams
from byref.contract.roles import BATCH, KV, TARGET, Pool, RoleSizing, Scratch, Sizing
from byref.contract.specs import PoolSpec
from byref.contract.state import State
from byref.contract.step import Wanted, Window
from byref.engine.batch import RowBatch
from byref.engine.forwards import Forwards, Unit

PrepareStep = Callable[[], None]
PrepareForward = Callable[[ForwardContext], None]


def value(spec: PoolSpec, prefix: Sequence[int]) -> Tensor:
    """What a pool must hold for the row that ends `prefix`: [width] whole numbers below 100."""
    seed = hashlib.blake2b(repr((spec.role, spec.name, tuple(prefix))).encode(), digest_size=2 * spec.width).digest()
    pairs = zip(seed[::2], seed[1::2], strict=True)
    return torch.tensor([(256 * a + b) % 199 - 99 for a, b in pairs], dtype=spec.dtype)


@dataclass(slots=True)
class Writer:
    """The model of one role: it checks what the pools hold, writes its rows, and checks them again."""

    desk: Desk
    role: str
    vocabulary: int = 1
    input_width: int = 0
    optional: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        pools = [self.desk.kv.pool(spec.role, spec.name) for spec in self.desk.pools if spec.role == self.role]
        windows = ctx.state(BATCH).host()
        for pool in pools:
            for window in windows:
                check_readable(pool, window.row, self.desk.before(window), window.start)
            pool.write(ctx, self._rows(pool.spec, windows, ctx))
            for window in windows:
                self._check_written(pool, window)
        return torch.zeros(ctx.logit_rows, self.vocabulary)

    def _rows(self, spec: PoolSpec, windows: Sequence[Window], ctx: ForwardContext) -> Tensor:
        values = torch.zeros(ctx.rows, spec.width, dtype=spec.dtype)
        starts = ctx.state(BATCH).starts(ctx).tolist()
        for first, window in zip(starts, windows, strict=False):
            for row in range(len(window.tokens)):
                values[first + row] = value(spec, self.desk.prefix(window, row))
        return values

    def _check_written(self, pool: Pool, window: Window) -> None:
        """The window's own rows are readable at once; of a tree's strided entries only after commit."""
        spec, rows = pool.spec, range(len(window.tokens))
        if spec.stride > 1:
            return
        newest = [row for row in rows if spec.per == "token" or row >= len(rows) - spec.versions]
        index = torch.tensor([window.start + row for row in newest])
        wanted = torch.stack([value(spec, self.desk.prefix(window, row)) for row in newest])
        slots = pool.slots(torch.tensor(window.row), index)
        assert bool((slots > 0).all()), f"{spec.name}: rows of the window have no slot"
        assert torch.equal(pool.read(slots), wanted), f"{spec.name}: rows of the window are not what was written"


def check_readable(pool: Pool, row: int, tokens: Sequence[int], start: int) -> None:
    """Entries before the window are what its tokens say; what is no longer kept is slot 0.

    Of a request's states only the newest must be there: rows that were not kept may have taken the others' places.
    """
    spec = pool.spec
    entries = start // spec.stride
    kept = spec.versions if spec.per == "request" else spec.window
    first = max(entries - kept, 0) if kept is not None else 0
    slots = pool.slots(torch.tensor(row), torch.arange(entries))
    assert not slots[:first].any(), f"{spec.name}: entries that are no longer kept have a slot"
    first = max(entries - 1, 0) if spec.per == "request" else first
    assert bool((slots[first:] > 0).all()), f"{spec.name}: kept entries have no slot"
    if entries > first:
        wanted = torch.stack([value(spec, tokens[: (e + 1) * spec.stride]) for e in range(first, entries)])
        found = pool.read(slots[first:])
        wrong = [first + i for i, same in enumerate((found == wanted).all(-1).tolist()) if not same]
        assert not wrong, f"{spec.name}: entries {wrong} of {entries} are not what was written"


class Desk:
    """Requests on a KV: adds, windows, commits, forks and releases them, checking every pool in every forward."""

    def __init__(self, kv: KV, sizing: Sizing, prepare_step: PrepareStep, prepare_forward: PrepareForward) -> None:
        self.kv, self.sizing, self.pools = kv, sizing, sizing.pools
        self.requests: dict[str, Request] = {}
        self._prepare_step = prepare_step
        self._free_rows = list(range(sizing.max_requests, 0, -1))
        self._count = 0
        units = [self._unit(role) for role in sizing.roles]
        self._forwards = Forwards(units, prepare_forward, Eager(), sizing)

    def _unit(self, role: RoleSizing) -> Unit:
        states, batch = StateMap(role.name), RowBatch(self.sizing)
        for state in (batch, Scratch(), self.kv):
            if isinstance(state, State):
                states.attach(state, "testing")
        states.seal()
        return Unit(role.name, role.id, Writer(self, role.name), batch, states, None)

    def make(self, prompt: Sequence[int], max_tokens: int = 16, **key: str) -> Request:
        """A request that has not reached the KV."""
        self._count += 1
        params, tokens = SamplingParams(max_tokens=max_tokens), list(prompt)
        id = f"r{self._count}"
        return Request(id, tuple(tokens), params, 0, arrival=self._count, tokens=tokens, cache_key=dict(key))

    def admit(self, request: Request) -> bool:
        """A row, what `match` finds, and room for all its tokens; False where there is none now."""
        request.row = self._free_rows.pop()
        found = request.cached_tokens = self.kv.match(request)
        assert 0 <= found < len(request.tokens)
        request.lengths = {role.name: found for role in self.sizing.roles}
        self.requests[request.id] = request
        if self.kv.reserve(request, len(request.tokens) - found) is None:
            self.release(request)
            return False
        return True

    def add(self, prompt: Sequence[int], max_tokens: int = 16, **key: str) -> Request:
        """A request that is admitted at once."""
        request = self.make(prompt, max_tokens, **key)
        assert self.kv.refusal(request) is None
        assert self.admit(request), "there is no room"
        return request

    def window(
        self, request: Request, rows: int = 0, drafts: Sequence[int] = (), parents: Sequence[int] = ()
    ) -> Window:
        """The next `rows` known tokens (0: all there are), then drafts; `parents` as in `Window`."""
        start = request.computed
        known = tuple(request.tokens[start : start + rows] if rows else request.tokens[start:])
        prompt = len(request.tokens) - start > 1 or request.generated == 0
        tokens, parents = (*known, *drafts), tuple(parents)
        return Window(request.id, request.row, TARGET, start, tokens, len(drafts), parents, Wanted.LAST, prompt)

    def forward(self, *windows: Window) -> bool:
        """Reserve and compute windows of the target; False, and nothing done, where there is no room."""
        for window in windows:
            grant = self.kv.reserve(self.requests[window.request], len(window.tokens))
            if grant is None:
                return False
            assert grant.upto >= window.end
        self._prepare_step()
        self._forwards(TARGET, windows)
        return True

    def idle(self, role: str) -> None:
        """A forward without a live row."""
        self._forwards(role, ())

    def draft(self, role: str, *windows: Window) -> None:
        """Compute windows of another role; their known rows count as computed."""
        self._forwards(role, windows)
        for window in windows:
            self.requests[window.request].lengths[role] = window.start + window.known

    def keep(self, window: Window, path: Sequence[int], chosen: int | None = None) -> None:
        """Commit rows `path` of a window, whose drafts there and the token `chosen` after them are accepted."""
        request = self.requests[window.request]
        request.tokens += [window.tokens[row] for row in path if row >= window.known]
        request.tokens += [] if chosen is None else [chosen]
        self.kv.commit(request, path)
        end = window.start + len(path)
        request.lengths = {r: end if r == TARGET else min(n, end) for r, n in request.lengths.items()}

    def prefill(self, request: Request, chunk: int = 0, chosen: int = 1) -> None:
        """Compute all tokens in chunks, and choose one more."""
        last = False
        while not last:
            window = self.window(request, chunk)
            assert self.forward(window), "there is no room"
            last = window.end == len(request.tokens)
            self.keep(window, range(len(window.tokens)), chosen if last else None)

    def check(self, *requests: Request) -> None:
        """Read everything the requests have, by computing one more row of each."""
        windows = [self.window(request, 1) for request in requests or self.requests.values()]
        if windows:
            assert self.forward(*windows), "there is no room"
        for window in windows:
            last = window.end == len(self.requests[window.request].tokens)
            self.keep(window, (0,), 8 if last else None)

    def fork(self, parent: Request) -> Request:
        """A second request with the parent's tokens and entries."""
        child = self.make(parent.prompt, parent.params.max_tokens)
        child.tokens, child.row, child.cache_key = list(parent.tokens), self._free_rows.pop(), dict(parent.cache_key)
        try:
            self.kv.fork(parent, child)
        except RequestError:
            self._free_rows.append(child.row)
            raise
        child.lengths = dict(parent.lengths)
        self.requests[child.id] = child
        return child

    def release(self, request: Request) -> None:
        """Take everything of a request back."""
        self.kv.release(request)
        self._free_rows.append(request.row)
        del self.requests[request.id]
        request.row, request.lengths = 0, {}

    def before(self, window: Window) -> list[int]:
        """Tokens before a window; a role may be computed behind the target."""
        return self.requests[window.request].tokens[: window.start]

    def prefix(self, window: Window, row: int) -> list[int]:
        """All tokens up to one row of a window, along its parents."""
        return self.before(window) + [window.tokens[r] for r in window.lineage(row)]
