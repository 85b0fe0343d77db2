"""Drafters as another party's plugin brings them, which draft what a test tells them, and a watch on what caches hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from checkpoints import VOCABULARY
from engines import assert_idle, start, together
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from byref.contract import API_VERSION, Plugin, PluginInfo, Request, SamplingParams, hookimpl
from byref.engine import Completion, Engine
from byref_spec_decoding.drafter import KIND, Draft, Drafter, Round
from byref_spec_decoding.drafters.draft_model import DraftModel
from byref_spec_decoding.rollout import catch_up, follow, run

Reference = Mapping[tuple[int, ...], Sequence[int]]
"""By prompt, the tokens that will come. Of a choice or a further request of equal prompt the drafts may all be wrong."""


class ScriptedOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    right: int = 99
    """So many drafts of a window are right, those after them wrong."""
    uneven: bool = False
    """Windows draft different numbers, none included: by the request and by where it stands."""


class Scripted(Drafter):
    """A test fills `reference`, and may set `right` while nothing runs."""

    Options = ScriptedOptions

    def __init__(self, options, most, *, tree):
        super().__init__(options, most, tree=tree)
        self.reference: Reference = {}
        self.right = getattr(options, "right", 99)
        self.proposed: list[tuple[str, tuple[int, ...]]] = []

    def propose(self, round: Round) -> Mapping[str, Draft]:
        drafts = {want.request.id: self.script(want.request, want.most) for want in round.wants if want.most}
        self.proposed += [(id, draft.tokens) for id, draft in drafts.items()]
        return drafts

    def script(self, request: Request, most: int) -> Draft:
        coming = [*self.reference.get(request.prompt, ())][request.generated :]
        coming += [1] * most
        if getattr(self.options, "uneven", False):
            most = (len(request.prompt) + request.generated) % (most + 1)
        return Draft(tuple(t if i < self.right else (t + 1) % VOCABULARY for i, t in enumerate(coming[:most])))


class ModelOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str = Field(min_length=1)


class ScriptedModel(DraftModel, Scripted):
    """Runs a draft model over its drafts, which are what it is told all the same: two caches, any number right."""

    Options = ModelOptions

    def propose(self, round: Round) -> Mapping[str, Draft]:
        drafts = Scripted.propose(self, round)
        windows = [catch_up(want.request, self.sizing) for want in round.wants if want.request.id in drafts]
        for draft_step in range(self.most):
            windows = [window for window in windows if draft_step < len(drafts[window.request].tokens)]
            for _ in run(round.forward, windows, self.sizing, draft_step):
                pass
            windows = [follow(window, drafts[window.request].tokens[draft_step]) for window in windows]
        return drafts


class Doubles(Plugin):
    """Another party's plugin: it brings two drafters, one as a class and one by its path."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def register(self, registry):
        registry.register(KIND, "scripted", Scripted)
        registry.register(KIND, "scripted_model", "doubles:ScriptedModel")


@dataclass(frozen=True, slots=True)
class Held:
    """What is kept of one request after a step."""

    tokens: tuple[int, ...]
    lengths: Mapping[str, int]
    entries: Mapping[str, Tensor]
    """By role: [entries, width of all its pools]."""


class Watch(Plugin):
    """Notes after every commit what is kept of each request that got tokens, and every report."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.held: list[Held] = []
        self.reports = []
        self.kv = None

    @hookimpl
    def bind(self, spec, site):
        self.kv = site.kv

    @hookimpl(trylast=True)
    def commit(self, step):
        for request in (step.requests[id] for id, verdict in step.outcome.items() if verdict.tokens):
            entries = {role: self.read(request, role) for role in request.lengths}
            self.held.append(Held(tuple(request.tokens), dict(request.lengths), entries))

    def read(self, request: Request, role: str) -> Tensor:
        """Straight from memory: [entries, width of all pools of the role]."""
        pools = [pool for (owner, _), pool in self.kv._pools.items() if owner == role]
        at = range(request.lengths[role])
        return torch.cat([pool.data[[pool.placement.at(request.row, i) for i in at]] for pool in pools], 1)

    @hookimpl
    def step_done(self, report):
        self.reports.append(report)


def plugin(engine: Engine, name: str):
    """The instance that runs under a name."""
    return engine.parts.host.plugin(name).instance


def drafter(engine: Engine) -> Drafter:
    return plugin(engine, "spec_decoding")._drafter


def start_with(path, drafter_name: str, table: Mapping | None = None, plugins=None, tables=None, **engine) -> Engine:
    """An engine that speculates: `table` is more of [plugins.spec_decoding], `tables` are those of other plugins."""
    tables = dict(tables or {})
    enable = ["models", "spec_decoding", *tables]
    tables["spec_decoding"] = {"drafter": drafter_name, "adaptive": False, **(table or {})}
    return start(path, {"doubles": Doubles, **(plugins or {})}, {"enable": enable, **tables}, **engine)


def assert_same(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    """A client can see no difference, log-probabilities within 1e-4 included."""
    pairs = [
        pair for both in zip(found, expected, strict=True) for pair in zip(*(d.choices for d in both), strict=True)
    ]
    for one, other in pairs:
        assert (one.token_ids, one.text, one.finished) == (other.token_ids, other.text, other.finished)
        for mine, theirs in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
            assert len(mine) == len(theirs)
            for a, b in zip(mine, theirs, strict=True):
                assert (a is None) == (b is None)
                assert (a or {}) == pytest.approx(b or {}, abs=1e-4)


def compare(
    path,
    drafter_name: str,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    table: Mapping | None = None,
    *,
    serve=together,
    plugins=None,
    tables=None,
    **engine,
) -> tuple[list[Completion], Mapping[str, float]]:
    """Serve with and without drafts, hold the two together, and look whether anything is left over. Doubles are told
    what came without."""
    expected = plain(path, prompts, params, serve, plugins, **engine)
    with start_with(path, drafter_name, table, plugins, tables, **engine) as running:
        if isinstance(drafter(running), Scripted):
            drafter(running).reference = {done.prompt_ids: done.token_ids for done in expected}
        found = serve(running, prompts, params)
        assert_same(found, expected)
        assert_idle_with(running)
        return found, running.figures()["spec_decoding"]


def plain(path, prompts, params, serve=together, plugins=None, **engine) -> list[Completion]:
    with start(path, plugins, **engine) as running:
        return serve(running, prompts, params)


class Own(NamedTuple):
    """A drafter as it comes with the plugin."""

    target: Path
    name: str
    table: dict

    def compare(self, prompts, params, **more):
        return compare(self.target, self.name, prompts, params, self.table, **more)

    def start(self, plugins=None, tables=None, **engine):
        return start_with(self.target, self.name, self.table, plugins, tables, **engine)

    def plain(self, prompts, params):
        return plain(self.target, prompts, params)


def assert_idle_with(engine: Engine) -> None:
    """Nothing is left over, in the plugin neither."""
    if type(engine.parts.kv).__name__ == "PagedKV":
        from paging import assert_idle as nothing_on_pages

        nothing_on_pages(engine)
    else:
        assert_idle(engine)
    speculator = engine.parts.speculator
    assert not speculator._drafts
    assert not speculator._dropped
    assert not speculator._pace._followed
    for name in ("_histories", "_own", "_running"):
        assert not getattr(speculator._drafter, name, None)
