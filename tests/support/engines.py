"""Starts engines on tiny checkpoints and drives them: arrivals, completions, and whether anything is left over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from byref.config import Config
from byref.contract import Plugin, SamplingParams
from byref.engine import Completion, Engine

MOST_STEPS = 5000
SIZES = {"max_requests": 8, "max_rows": 64, "threads": 1, "capture": "off", "seed": 0}


def start(
    path: Path | str,
    plugins: Mapping[str, type[Plugin]] | None = None,
    options: Mapping[str, dict] | None = None,
    **engine,
) -> Engine:
    """An engine in fp32 on one CPU thread; `engine` are values of [engine], `options` tables of plugins."""
    tables = {
        "model": {"path": str(path), "dtype": "float32", "device": "cpu"},
        "engine": SIZES | engine,
        "plugins": {"enable": ["models"], **(options or {})},
    }
    return Engine.start(Config.model_validate(tables), plugins)


def greedy(tokens: int, **more) -> SamplingParams:
    """So many of the likeliest tokens, whatever they are."""
    return SamplingParams(max_tokens=tokens, ignore_eos=True, **more)


def step(engine: Engine, done: dict[str, Completion]) -> None:
    """One step; completions are put into `done`."""
    done |= {chunk.request_id: chunk.completion for chunk in engine.step() if chunk.completion is not None}


def finish(engine: Engine, ids: Iterable[str], done: dict[str, Completion] | None = None) -> list[Completion]:
    """Steps until every request has ended; fails where that takes too long. Completions in the order of `ids`."""
    ids, done = list(ids), {} if done is None else done
    for _ in range(MOST_STEPS):
        if done.keys() >= set(ids):
            return [done[one] for one in ids]
        step(engine, done)
    raise AssertionError(f"after {MOST_STEPS} steps these have not ended: {sorted(set(ids) - done.keys())}")


def together(engine: Engine, prompts: Sequence, params: SamplingParams | Sequence[SamplingParams]) -> list[Completion]:
    """Every request is there from the start."""
    return finish(engine, [engine.add(p, one) for p, one in zip(prompts, _each(params, prompts), strict=True)])


def one_per_step(
    engine: Engine, prompts: Sequence, params: SamplingParams | Sequence[SamplingParams]
) -> list[Completion]:
    """A request arrives at each step, while those before it are being computed."""
    ids, done = [], {}
    for prompt, one in zip(prompts, _each(params, prompts), strict=True):
        ids.append(engine.add(prompt, one))
        step(engine, done)
    return finish(engine, ids, done)


def _each(params: SamplingParams | Sequence[SamplingParams], prompts: Sequence) -> Sequence[SamplingParams]:
    return [params] * len(prompts) if isinstance(params, SamplingParams) else params


def assert_idle(engine: Engine) -> None:
    """Nothing runs, waits or is held."""
    capacities = {name for name in engine.usage() if name.startswith("capacity")}
    assert engine.idle
    assert {name: n for name, n in engine.usage().items() if name not in capacities and n} == {}
    planner = engine._planner
    assert sorted(planner._free_rows) == list(range(1, engine.parts.sizing.max_requests + 1))
    assert not planner.choices
    assert not planner._restarted
    for space in getattr(engine.parts.kv, "_spaces", ()):
        assert space.extents.used == 0
        assert not space.held
        assert not space.bases().any()
