"""What plugins cost. (a) Hook machinery, every family in use, against the same forward with the calls inlined by
hand, step by step in turn: under 1 % of a decode step. (b) Time outside `forward`: at most 5 % of a step with one
stream, 10 % with 64. (c) Python inside a forward, outside kernels: reported. Ends with 1 where a bound is missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from common import (
    Watch,
    arguments,
    config,
    decoding,
    drain,
    english,
    machine,
    model_or_skip,
    picture,
    table,
    watched,
    write,
)
from everything import ByHand, Everything, ModelByHand
from tiny import save_tiny

from byref.capture import Eager
from byref.contract.context import ForwardContext
from byref.engine import Engine
from byref.engine.forwards import Forwards
from byref.engine.runner import Runner

MACHINERY, OUTSIDE = 0.01, {1: 0.05, 64: 0.10}
PROMPT = 128
BATCHES = (1, 4, 16, 64)
HOST_CALLS = ("prepare_step", "adjust_logits", "commit", "step_done", "prepare_forward")
"""Hooks of one decode step, each called once through its tuple."""
PER_LAYER = 6
"""Python calls of a layer that inlining removes: the layer, its attention, norm with projection, rotary attention
and its decorator, the MLP. (The output projection is called either way.)"""
PER_FORWARD = 3
"""And of a forward: the tapped layer and the tap, the narrowing."""


class Switched(Engine):
    """An engine that runs its steps through its hooks, or with everything inlined; on the same weights and cache."""

    _variants: tuple[Runner, Runner]

    def by_hand(self) -> None:
        """From now on inlined."""
        self._runner = self._variants[1]

    def by_hooks(self) -> None:
        """From now on as it is."""
        self._runner = self._variants[0]

    def split(self) -> None:
        """Make both variants."""
        plugin: Everything = self.parts.host.plugin("everything").instance  # type: ignore[assignment]
        hooks = ByHand(plugin)
        unit = replace(self.parts.units[0], model=ModelByHand(self, plugin))

        def prepare(ctx: ForwardContext) -> None:
            refill(ctx)
            own(ctx)

        refill, own = self.parts.kv.refill, plugin.prepare_forward  # type: ignore[attr-defined]
        forwards = Forwards([unit], prepare, Eager(), self.parts.sizing)
        self._variants = self._runner, replace(self._runner, forwards=forwards, hooks=hooks)


@dataclass(frozen=True)
class Pair:
    """(a) for one batch size: microseconds."""

    batch: int
    step: float
    difference: float
    """Median over pairs of neighbouring steps, hooks less by hand: noise included."""
    spread: float
    """Half the distance between that difference's quartiles, over the root of the number of pairs."""
    counted: float
    """Calls of one step, each at its measured cost."""

    @property
    def share(self) -> float:
        """Of a step, by the calls."""
        return self.counted / self.step


def pairs(engine: Switched, batch: int, count: int, cost: float) -> Pair:
    """Steps in turn: hooks, hand, hand, hooks, ..."""
    decoding(engine, english(engine.tokenizer, batch, PROMPT), 2 * count)
    times: list[list[float]] = [[], []]
    for i in range(2 * count):
        which = (i + i // 2) % 2
        (engine.by_hooks, engine.by_hand)[which]()
        began = time.perf_counter()
        engine.step()
        times[which].append(time.perf_counter() - began)
    engine.by_hooks()
    drain(engine)
    differences = [a - b for a, b in zip(*times, strict=True)]
    low, middle, high = statistics.quantiles(differences, n=4)
    return Pair(batch, statistics.median(times[0]) * 1e6, middle * 1e6, (high - low) / 2 * 1e6 / count**0.5, cost * 1e6)


def counted_cost(engine: Switched, layers: int) -> tuple[float, dict[str, float]]:
    """Seconds of a step's machinery: the calls there are, times what each costs more than a direct one."""
    resolved, direct = _per_call(lambda: _through(engine)), _per_call(lambda: _noop)
    bound = _per_call(lambda: _closure(_noop)) - direct
    calls = {"hook": len(HOST_CALLS), "bound": layers * PER_LAYER + PER_FORWARD}
    cost = calls["hook"] * (resolved - direct) + calls["bound"] * bound
    return cost, {
        "hook_ns": (resolved - direct) * 1e9,
        "bound_ns": bound * 1e9,
        **{f"{k}_calls": n for k, n in calls.items()},
    }


def _per_call(make: Callable[[], Callable[[object], object]]) -> float:
    call = make()
    return min(timeit.repeat(lambda: call(None), number=20_000, repeat=9)) / 20_000


def _noop(argument: object) -> None:
    return None


def _closure(call: Callable[[object], object]) -> Callable[[object], object]:
    """A bound call as layers make it: an attribute's method around a closure."""

    class Owner:
        def __init__(self) -> None:
            self.call = call

        def __call__(self, argument: object) -> object:
            return self.call(argument)

    return Owner()


def _through(engine: Switched) -> Callable[[object], object]:
    """The engine's own tuple path of a hook that takes one argument, around a function that does nothing."""
    hooks = type(engine.parts.host.hooks)({**engine.parts.host.resolved, "commit": (_impl(engine),)})
    return hooks.commit  # type: ignore[return-value]


def _impl(engine: Switched) -> Any:
    return replace(engine.parts.host.resolved["commit"][0], call=_noop)


def outside(engine: Engine, batch: int, count: int) -> dict[str, float]:
    """(b): medians over decode steps; the step is timed around `Engine.step`, the forward by the engine."""
    reports = watched(engine)
    decoding(engine, english(engine.tokenizer, batch, PROMPT), count)
    steps, shares, rest = [], [], []
    for _ in range(count):
        began = time.perf_counter()
        engine.step()
        took = time.perf_counter() - began
        inside = reports[-1].forward_seconds
        steps.append(took)
        rest.append(took - inside)
        shares.append((took - inside) / took)
    drain(engine)
    middle = statistics.median
    return {"batch": batch, "step_ms": middle(steps) * 1e3, "outside_ms": middle(rest) * 1e3, "share": middle(shares)}


def inside(engine: Engine, tiny: Engine, batch: int, count: int) -> dict[str, float]:
    """(c): the same number of layers with next to no arithmetic, and what the profiler counts in the real forward."""
    python = _forward_seconds(tiny, batch, 8, count)
    plain = _forward_seconds(engine, batch, PROMPT, count)
    decoding(engine, english(engine.tokenizer, batch, PROMPT), 8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        engine.step()
    profiled = watched(engine)[-1].forward_seconds
    drain(engine)
    operators = [event for event in profiler.events() if event.cpu_parent is None]
    return {
        "batch": batch,
        "forward_ms": plain * 1e3,
        "python_and_dispatch_ms": python * 1e3,
        "operators": len(operators),
        "profiled_python_ms": max(profiled - sum(event.cpu_time_total for event in operators) / 1e6, 0.0) * 1e3,
    }


def _forward_seconds(engine: Engine, batch: int, prompt: int, count: int) -> float:
    decoding(engine, english(engine.tokenizer, batch, prompt), count)
    for _ in range(count):
        engine.step()
    forward = statistics.median(report.forward_seconds for report in watched(engine)[-count:])
    drain(engine)
    return forward


def draw(a: Sequence[Pair], b: Sequence[dict[str, float]], c: Sequence[dict[str, float]]) -> None:
    with picture("overhead", 3) as figure:
        machinery, rest, python = figure.axes
        at = range(len(a))
        machinery.bar(at, [100 * p.share for p in a], 0.5, label="calls times cost")
        machinery.errorbar(
            at,
            [100 * p.difference / p.step for p in a],
            [100 * p.spread / p.step for p in a],
            fmt="ko",
            label="steps in turn",
        )
        machinery.axhline(100 * MACHINERY, color="tab:red", label="bound")
        machinery.set_title("(a) hook machinery, % of a step")
        machinery.set_xticks(at, [str(p.batch) for p in a])
        rest.bar(range(len(b)), [100 * r["share"] for r in b], 0.5)
        bounded = [(i, 100 * OUTSIDE[int(r["batch"])]) for i, r in enumerate(b) if r["batch"] in OUTSIDE]
        rest.plot(*zip(*bounded, strict=True), "r_", markersize=30, label="bound")
        rest.set_title("(b) outside forward, % of a step")
        rest.set_xticks(range(len(b)), [str(int(r["batch"])) for r in b])
        python.bar(range(len(c)), [r["forward_ms"] for r in c], 0.5, label="forward")
        python.bar(range(len(c)), [r["python_and_dispatch_ms"] for r in c], 0.5, label="Python and dispatch")
        python.set_title("(c) inside forward, ms")
        python.set_xticks(range(len(c)), [str(int(r["batch"])) for r in c])
        for axis in figure.axes:
            axis.set_xlabel("streams")
            axis.legend()


def show(
    a: Sequence[Pair], calls: dict[str, float], b: Sequence[dict[str, float]], c: Sequence[dict[str, float]]
) -> None:
    title = (
        f"(a) machinery: {calls['hook_calls']:.0f} hooks of {calls['hook_ns']:.0f} ns, "
        f"{calls['bound_calls']:.0f} bound calls of {calls['bound_ns']:.0f} ns"
    )
    rows: list[list[object]] = [
        [p.batch, p.step / 1e3, p.counted, f"{p.share:.3%}", p.difference, p.spread, f"{p.difference / p.step:.2%}"]
        for p in a
    ]
    table(["streams", "step ms", "counted us", "share", "in turn us", "+- us", "share"], rows, title)
    rows = [
        [r["batch"], r["step_ms"], r["outside_ms"], f"{r['share']:.2%}", f"{OUTSIDE.get(int(r['batch']), 1):.0%}"]
        for r in b
    ]
    table(["streams", "step ms", "outside ms", "share", "bound"], rows, "(b) time outside forward")
    rows = [
        [r[key] for key in ("batch", "forward_ms", "python_and_dispatch_ms", "operators", "profiled_python_ms")]
        for r in c
    ]
    head = ["streams", "forward ms", "Python and dispatch ms", "operators", "outside operators, profiled ms"]
    table(head, rows, "(c) inside forward")


def missed(a: Sequence[Pair], b: Sequence[dict[str, float]]) -> list[str]:
    """The bounds that do not hold; of the difference in turn, only what noise cannot explain."""
    found = [f"machinery is {p.share:.2%} of a step with {p.batch} streams" for p in a if p.share >= MACHINERY]
    found += [
        f"machinery takes {p.difference / p.step:.2%} of a step with {p.batch} streams, measured in turn"
        for p in a
        if p.difference - 3 * p.spread > MACHINERY * p.step
    ]
    return found + [
        f"{r['share']:.2%} of a step with {int(r['batch'])} streams lies outside forward"
        for r in b
        if r["share"] > OUTSIDE.get(int(r["batch"]), 1)
    ]


def check_same(engine: Switched) -> None:
    """By hand and by hooks must compute the same, or their times say nothing."""
    texts = []
    for use in (engine.by_hooks, engine.by_hand):
        use()
        decoding(engine, english(engine.tokenizer, 2, 16), 8)
        texts.append([engine.step() for _ in range(4)])
        drain(engine)
    tokens = [[[chunk.token_ids for chunk in chunks] for chunks in text] for text in texts]
    if tokens[0] != tokens[1]:
        raise SystemExit("the forward by hand is not the engine's any more: bring everything.py up to date")


def run(path: Path, args: Any, batches: Sequence[int], count: int) -> list[str]:
    figures: dict[str, Any] = {"machine": machine(), "threads": args.threads, "dtype": "bfloat16"}
    with Switched.start(config(path, args.threads, max_context=512), plugins={"everything": Everything}) as engine:
        engine.split()
        check_same(engine)
        layers = len({bound.spec.layer for bound in engine.parts.binder.bound} - {-1})
        cost, calls = counted_cost(engine, layers)
        a = [pairs(engine, batch, count, cost) for batch in batches]
    watch: dict[str, Any] = {"watch": Watch}
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.start(config(path, args.threads, max_context=512), plugins=watch) as engine,
        Engine.start(config(save_tiny(Path(folder), layers), args.threads), plugins=watch) as tiny,
    ):
        b = [outside(engine, batch, count) for batch in batches]
        c = [inside(engine, tiny, batch, count) for batch in batches]
    show(a, calls, b, c)
    if not args.quick:
        pairs_us = [{**asdict(pair), "share": pair.share} for pair in a]
        write("overhead", {**figures, "calls": calls, "machinery_us": pairs_us, "outside": b, "inside": c})
        draw(a, b, c)
    return missed(a, b)


def main() -> int:
    parser = arguments(__doc__, repeat=60)
    parser.add_argument("--report", action="store_true", help="end with 0 even where a bound is missed")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = model_or_skip(args.model)
    found = run(path, args, (1, 4) if args.quick else BATCHES, 6 if args.quick else args.repeat)
    for line in found:
        print(f"missed: {line}")
    return 1 if found and not args.report and not args.quick else 0


if __name__ == "__main__":
    sys.exit(main())
