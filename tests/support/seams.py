"""A plugin that stands on every seam at once: a draft role fed by hidden states, taps, pools of every kind, a
codec set by `refine`, a grammar that looks at drafts. It checks the pools against an oracle after every commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from byref.contract import (
    API_VERSION,
    Key,
    LogitRows,
    Plugin,
    PluginInfo,
    Request,
    RoleSource,
    State,
    Step,
    Window,
    hookimpl,
)
from byref.contract.roles import BATCH, DRAFT, TARGET, Pool
from byref.contract.specs import PoolSpec, TapSpec, rewrite
from byref.contract.step import Wanted
from byref.engine.speculator import PlainSpeculator
from byref_models.llama import Llama

LAYER = 1
"""The target's layer whose output is tapped."""
CLASSES = 3
"""Of tokens, by remainder: the grammar bans one class at every position."""
LETTERS = 256
"""Wrong drafts are tokens below this."""


class Negated:
    """A codec that is exact: it stores the negative of every value."""

    dtype = torch.float32

    def width(self, width):
        return width

    def encode(self, values):
        return -values

    def decode(self, stored):
        return -stored


class Int8:
    """A codec that is not: one scale per value row, kept in four more bytes of it."""

    dtype = torch.int8

    def width(self, width):
        return width + 4

    def encode(self, values):
        scale = values.abs().amax(-1, keepdim=True).clamp(min=1e-8).float() / 127
        return torch.cat(((values / scale).round().to(torch.int8), scale.view(torch.int8)), -1)

    def decode(self, stored):
        scale = stored[..., -4:].contiguous().view(torch.float32)
        return stored[..., :-4].float() * scale


class FedDraft(Llama):
    """A shallow Llama whose input is a token and the hidden state of the position before it."""

    def __init__(self, config, ask):
        super().__init__(config, ask)
        self.input_width = config.hidden_size

    def __call__(self, ids, positions, hidden, ctx):
        x = self.embed(ids) + hidden
        for layer in self.layers:
            x = layer(x, positions, ctx)
        return self.head(self.norm(self.rows(x, ctx)))


class Hiddens(State):
    """The tapped hidden states of the forward before, and those that the draft role's rows continue."""

    key: ClassVar[Key]
    roles = (TARGET, DRAFT)

    def __init__(self, rows, width, sizing):
        self._tapped = torch.zeros(rows, width, dtype=sizing.dtype, device=sizing.device)
        self._fed = torch.zeros_like(self._tapped)

    def buffers(self):
        return {"tapped": self._tapped, "fed": self._fed}

    def take(self, hidden: Tensor) -> None:
        self._tapped[: hidden.shape[0]].copy_(hidden)

    def feed(self, ctx) -> None:
        rows = ctx.state(BATCH).from_row(ctx)
        self._fed[: ctx.rows].copy_(self._tapped.index_select(0, rows))

    def lend(self) -> Tensor:
        return self._fed


Hiddens.key = Key("seams.hiddens", Hiddens)


class SeamSpeculator(State, PlainSpeculator):
    """Drafts what it is told (a chain or a tree), and runs its draft model over everything all the same."""

    key: ClassVar[Key]

    def __init__(self, plugin: Seams, hiddens: Hiddens) -> None:
        self._plugin, self._hiddens = plugin, hiddens
        self._drafted: dict[str, tuple[int, ...]] = {}

    def width(self, request: Request) -> Sequence[int]:
        script = self._plugin.script
        return script.drafts(request) if script else self._drafted.get(request.id, ())

    def parents(self, request: Request) -> Sequence[int]:
        script = self._plugin.script
        return script.parents(request) if script else ()

    def propose(self, step: Step, forward) -> None:
        """Step 0 covers every row that the target computed and kept; each later step adds one draft's row."""
        windows = [self._first(step, window) for window in step.plan.windows if window.request not in step.finished]
        self._drafted = {window.request: () for window in windows}
        for draft_step in range(self._plugin.options.drafts):
            if not windows:
                return
            logits = forward(DRAFT, windows, self._hiddens.lend(), draft_step)
            self._plugin.draft_forwards += 1
            tokens = logits.argmax(-1).tolist()
            wanting = [window for window in windows if window.wanted is not Wanted.NONE]
            for window, token in zip(wanting, tokens[: len(wanting)], strict=True):
                self._drafted[window.request] += (token,)
            windows = [self._next(window, self._drafted[window.request]) for window in wanting]

    def _first(self, step: Step, window: Window) -> Window:
        """EAGLE's shift: row i has hidden i and token i + 1."""
        request, path = step.requests[window.request], step.outcome[window.request].path
        tokens = tuple(request.tokens[window.start + 1 : window.start + 1 + len(path)])
        last = window.start + len(path) + 1 == len(request.tokens)
        return Window(
            request=window.request,
            row=window.row,
            role=DRAFT,
            start=window.start,
            tokens=tokens,
            wanted=Wanted.LAST if last else Wanted.NONE,
            prompt=window.prompt,
            from_rows=path,
        )

    def _next(self, window: Window, drafted: tuple[int, ...]) -> Window:
        return replace(
            window,
            start=window.end,
            tokens=(drafted[-1],),
            drafts=1,
            prompt=False,
            from_rows=(len(window.tokens) - 1,),
        )


SeamSpeculator.key = Key("seams.speculator", SeamSpeculator)


@dataclass
class Script:
    """Drafts from the tokens that the plain engine gave: `right` of them right, then wrong ones, up to `most`; as a
    tree, a wrong sibling stands behind each of half as many."""

    reference: Mapping[tuple[int, ...], Sequence[int]]
    right: int
    most: int
    tree: bool = False

    def drafts(self, request: Request) -> Sequence[int]:
        known = [*self.reference[request.prompt], *[1] * self.most][request.generated :]
        chain = [(t if i < self.right else t + 1) % LETTERS for i, t in enumerate(known[: self.most])]
        return [token for t in chain[: self.most // 2] for token in (t, (t + 7) % LETTERS)] if self.tree else chain

    def parents(self, request: Request) -> Sequence[int]:
        """Draft 2 i is the chain's i-th, 2 i + 1 its wrong sibling; both continue the chain's draft before."""
        return [max(2 * i - 2, -1) for i in range(self.most // 2) for _ in range(2)] if self.tree else ()


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    drafts: int = 4
    grammar: bool = True
    pools: bool = True
    poison: bool = False
    """Fill every slot that no request holds with NaN before each step."""


class Seams(Plugin[Options]):
    """See the module. A test sets `script` and reads `pools`, `checked` and `draft_forwards`."""

    info = PluginInfo(api_version=API_VERSION, provides=("seams",), requires=("kv.rewind", "kv.pools"))
    Options = Options

    def __init__(self, name, options):
        super().__init__(name, options)
        self.script: Script | None = None
        self.pools: dict[str, Pool] = {}
        self.commits: list[tuple[tuple[int, ...], int, dict[str, Tensor]]] = []
        self.draft_forwards = 0
        self.released: list[str] = []

    @hookimpl
    def register(self, registry):
        registry.model("SeamDraft", "seams:FedDraft")
        registry.role(DRAFT, RoleSource(architecture="SeamDraft", overrides={"num_hidden_layers": 2}))
        registry.drafts(self.options.drafts)

    @hookimpl
    def refine(self, specs):
        width = next(s.width for s in specs if isinstance(s, TapSpec))
        specs = rewrite(specs, PoolSpec, lambda pool: replace(pool, codec=Int8()) if pool.role == DRAFT else pool)
        if not self.options.pools:
            return specs
        pool = {"role": TARGET, "width": width, "dtype": torch.float32}
        return [
            *specs,
            PoolSpec(name="seams.every_fourth", stride=4, **pool),
            PoolSpec(name="seams.last_eight", window=8, codec=Negated(), **pool),
            PoolSpec(name="seams.running_sum", per="request", versions=self.options.drafts + 1, **pool),
        ]

    @hookimpl
    def create_states(self, sizing):
        self.sizing = sizing
        rows = 4 * max(sizing.max_rows, sizing.max_requests * (sizing.max_drafts + 1))
        self.hiddens = Hiddens(rows, sizing.role(DRAFT).hidden, sizing)
        return [self.hiddens, SeamSpeculator(self, self.hiddens)]

    @hookimpl
    def bind(self, spec, site):
        self.kv = site.kv
        if not isinstance(spec, TapSpec):
            return None
        if spec.role == DRAFT:
            return (lambda hidden, ctx: ctx.state(Hiddens.key).take(hidden)) if spec.point == "last" else None
        if spec.point != "layer" or spec.layer != LAYER:
            return None
        if self.options.pools:
            self.pools = {
                name: site.kv.pool(TARGET, f"seams.{name}") for name in ("every_fourth", "last_eight", "running_sum")
            }
        return self._take

    def _take(self, hidden, ctx):
        ctx.state(Hiddens.key).take(hidden)
        if self.options.pools:
            # The state before the window is read before the window's own states are written.
            total = running_sum(self.pools["running_sum"], hidden, ctx)
            self.pools["running_sum"].write(ctx, total)
            self.pools["every_fourth"].write(ctx, hidden)
            self.pools["last_eight"].write(ctx, hidden)

    @hookimpl
    def prepare_forward(self, ctx):
        if ctx.states.role == DRAFT:
            ctx.state(Hiddens.key).feed(ctx)

    @hookimpl
    def adjust_logits(self, rows: LogitRows):
        """Which class of tokens is banned follows from the token before, which may be a draft."""
        if self.options.grammar:
            for info, logits in rows:
                before = self.before(info)
                banned = torch.arange(logits.numel()) % CLASSES == (before + info.position) % CLASSES
                logits[banned] = float("-inf")

    @staticmethod
    def before(info) -> int:
        return info.drafts[-1] if info.drafts else info.request.tokens[info.position - 1]

    @hookimpl
    def prepare_step(self, step: Step):
        if self.options.poison:
            poison(self.kv)

    @hookimpl
    def commit(self, step: Step):
        if not self.pools:
            return
        for window in step.plan.windows:
            request, kept = step.requests[window.request], window.start + len(step.outcome[window.request].path)
            tokens = tuple(request.tokens[:kept])
            self.commits.append((tokens, kept, {name: self._read(name, request.row, kept) for name in self.pools}))

    def _read(self, name: str, row: int, kept: int) -> Tensor:
        pool = self.pools[name]
        index = {
            "every_fourth": range(kept // 4),
            "last_eight": range(max(kept - 8, 0), kept),
            "running_sum": range(kept - 1, kept),
        }[name]
        return pool.read(pool.slots(torch.tensor([row]), torch.tensor(list(index), dtype=torch.int64))).clone()

    @hookimpl
    def request_released(self, request, reason):
        self.released.append(request.id)


class Grammar(Plugin):
    """The grammar alone, without drafts."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def adjust_logits(self, rows):
        Seams("grammar", Options()).adjust_logits(rows)


class Tap(Plugin):
    """Keeps the tapped hidden states of every forward."""

    info = PluginInfo(api_version=API_VERSION)
    seen: list[torch.Tensor]

    @hookimpl
    def bind(self, spec, site):
        if isinstance(spec, TapSpec) and (spec.point, spec.layer) == ("layer", LAYER):
            self.seen = []
            return lambda hidden, ctx: self.seen.append(hidden.clone())
        return None


def running_sum(pool: Pool, hidden: Tensor, ctx) -> Tensor:
    """The sum of the request's hidden states up to each row, along its parents: [rows, width]."""
    batch = ctx.state(BATCH)
    request, index, offsets = batch.request_of_row(ctx), batch.index(ctx), batch.offsets(ctx)
    ahead = index[None, :] - batch.frontier(ctx)[:, None]
    seen = (ahead < 0) | (batch.ancestors(ctx)[:, None] >> ahead.clamp(0, 63) & 1).bool()
    own = (request[None, :] == request[:, None]) & (batch.rows(ctx)[None, :] > 0) & seen
    before = pool.read(pool.slots(batch.request_rows(ctx), offsets - 1)) * (offsets > 0)[:, None]
    return before[request] + own.to(hidden.dtype) @ hidden


def poison(kv) -> None:
    """What a free slot holds may not matter: everything outside extents becomes NaN, but for the sink, which padding
    rows write to and read from: it stays finite."""
    for pool in kv._pools.values():
        if pool.data.is_floating_point():
            free = torch.ones(len(pool.data), dtype=torch.bool)
            free[0] = False
            for base, entries in pool._space.held.values():
                free[base : base + entries + pool._space.geometry.stage] = False
            pool.data[free] = float("nan")


def expected(hidden: Tensor, kept: int) -> dict[str, Tensor]:
    """What the pools hold after `kept` tokens whose hidden states are `hidden` [tokens, width]."""
    hidden = hidden[:kept]
    return {
        "every_fourth": hidden[3::4],
        "last_eight": hidden[max(kept - 8, 0) :],
        "running_sum": hidden.sum(0, keepdim=True),
    }
