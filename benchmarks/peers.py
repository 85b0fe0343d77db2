"""The engine against transformers' `generate` on the same weights, dtype and threads, alternating in one run.

Workloads: W1 one stream; W2 a long prompt; W3 16 and W4 64 streams at once; W5 requests that share a prefix.
Ends with 1 where W1 or W3 decode below `BOUND` times transformers, unless --report.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import (
    Watch,
    alternating,
    arguments,
    config,
    english,
    greedy,
    machine,
    model_or_skip,
    picture,
    table,
    watched,
    write,
)
from transformers import AutoModelForCausalLM, GgufConfig
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from byref.contract.context import Kind
from byref.engine import Engine

BOUND = 1.5
"""W1 and W3: decode tokens/s over those of transformers."""
BOUND_ON = ("W1", "W3")
PEER, OURS = "transformers", "byref"
Prompts = list[tuple[int, ...]]


@dataclass(frozen=True)
class Workload:
    """Prompts given all at once, so many new tokens each."""

    name: str
    streams: int
    prompt: int
    new: int
    shared: int = 0
    """Leading tokens that all prompts have in common."""

    def prompts(self, engine: Engine) -> Prompts:
        """Slices of English text."""
        head = english(engine.tokenizer, 1, self.shared)[0] if self.shared else ()
        tails = english(engine.tokenizer, self.streams, self.prompt - self.shared, skip=self.shared)
        return [head + tail for tail in tails]


WORKLOADS = (
    Workload("W1", 1, 128, 128),
    Workload("W2", 1, 1024, 32),
    Workload("W3", 16, 128, 128),
    Workload("W4", 64, 128, 128),
    Workload("W5", 16, 544, 32, shared=512),
)
ONCE = ("W4", "W5")
"""Long ones: with --all, and then once."""


@dataclass(frozen=True)
class Run:
    """Figures of one run of a workload."""

    decode: float
    """New tokens/s while every stream decodes."""
    first_ms: float
    """Until the first token of any stream."""
    prefill: float
    """Prompt tokens/s until every stream has its first token."""
    total: float
    """New tokens/s over the whole run."""


def ours(engine: Engine, prompts: Prompts, new: int) -> tuple[Run, list[tuple[int, ...]]]:
    """One run of the engine, and the tokens it gave."""
    reports = watched(engine)
    reports.clear()
    began = time.perf_counter()
    done = engine.generate(prompts, greedy(new))
    took = time.perf_counter() - began
    decodes = [r for r in reports if r.kind is Kind.DECODE]
    firsts = [completion.timings.first_token for completion in done]
    run = Run(
        decode=sum(r.accepted for r in decodes) / sum(r.seconds for r in decodes),
        first_ms=min(firsts) * 1e3,
        prefill=sum(map(len, prompts)) / max(firsts),
        total=len(prompts) * new / took,
    )
    return run, [completion.token_ids for completion in done]


class Clock(BaseStreamer):  # type: ignore[misc]
    """Notes when `generate` has each step's tokens; its first call is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        return None


def theirs(model: Any, prompts: Prompts, new: int) -> tuple[Run, list[tuple[int, ...]]]:
    """One run of transformers: one batch, padded on the left, its dynamic cache."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    clock = Clock()
    began = time.perf_counter()
    out = model.generate(
        ids,
        attention_mask=mask,
        streamer=clock,
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
        eos_token_id=None,
        pad_token_id=0,
    )
    took = time.perf_counter() - began
    first, last = clock.times[1], clock.times[-1]
    run = Run(
        decode=len(prompts) * (new - 1) / (last - first),
        first_ms=(first - began) * 1e3,
        prefill=sum(map(len, prompts)) / (first - began),
        total=len(prompts) * new / took,
    )
    return run, [tuple(row) for row in out[:, width:].tolist()]


def load_peer(model: Path) -> Any:
    """The same checkpoint in transformers, dequantised to bf16."""
    logging.disable_progress_bar()
    plain: dict[str, Any] = {"dtype": torch.bfloat16, "attn_implementation": "sdpa", "local_files_only": True}
    if model.is_file():
        plain |= {"gguf_file": model.name, "quantization_config": GgufConfig(dequantize=True)}
    peer = AutoModelForCausalLM.from_pretrained(model.parent if model.is_file() else model, **plain)
    return peer.eval()


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Share of each sequence before the first difference: in bf16 near ties flip, and then texts part."""
    shares = []
    for a, b in zip(ours, theirs, strict=True):
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
        shares.append(same / len(a))
    return statistics.mean(shares)


def measure(
    engine: Engine, peer: Any, workload: Workload, repeat: int, before: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Both engines in turn, warmed up on the workload itself; medians. `before` is called before each run."""
    prompts, new = workload.prompts(engine), workload.new
    runs: dict[str, Callable[[int], tuple[Run, list[tuple[int, ...]]]]] = {
        OURS: lambda n: ours(engine, prompts, n),
        PEER: lambda n: theirs(peer, prompts, n),
    }
    for run in runs.values():
        before()
        run(min(new, 8))
    found: dict[str, list[Run]] = {name: [] for name in runs}
    texts: dict[str, list[tuple[int, ...]]] = {}
    for _, name in alternating(list(runs), repeat):
        before()
        figures, texts[name] = runs[name](new)
        found[name].append(figures)
    medians = {name: _median(results) for name, results in found.items()}
    return {
        **asdict(workload),
        **medians,
        "ratios": {key: medians[OURS][key] / medians[PEER][key] for key in ("decode", "prefill", "total")},
        "same_tokens": agreement(texts[OURS], texts[PEER]),
        "runs": {name: [asdict(run) for run in results] for name, results in found.items()},
    }


def _median(runs: Sequence[Run]) -> dict[str, float]:
    rows = [asdict(run) for run in runs]
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def show(results: Sequence[dict[str, Any]]) -> None:
    rows = [
        [
            f"{r['name']}  {r['streams']} x {r['prompt']}+{r['new']}",
            *(r[who][key] for key in FIGURES for who in (OURS, PEER)),
            f"{r['ratios']['decode']:.2f} / {r['ratios']['total']:.2f}",
            f"{r['same_tokens']:.0%}",
        ]
        for r in results
    ]
    head = [f"{key} {who}" for key in FIGURES.values() for who in ("ours", "peer")]
    table(["workload", *head, "ratio decode / total", "same"], rows, "tokens/s, medians; peer: transformers generate")


FIGURES = {"decode": "decode", "prefill": "prefill", "total": "total"}


def draw(results: Sequence[dict[str, Any]]) -> None:
    with picture("peers", len(FIGURES)) as figure:
        for axis, (key, title) in zip(figure.axes, FIGURES.items(), strict=True):
            for offset, who in ((-0.2, PEER), (0.2, OURS)):
                axis.bar([i + offset for i in range(len(results))], [r[who][key] for r in results], 0.4, label=who)
            for i, r in enumerate(results):
                top = max(r[OURS][key], r[PEER][key])
                axis.annotate(f"{r['ratios'][key]:.2f}x", (i, top), ha="center", va="bottom")
            axis.set_xticks(range(len(results)), [r["name"] for r in results])
            axis.set_title(f"{title}, tokens/s")
            axis.margins(y=0.12)
        figure.axes[0].legend(loc="upper left")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--all", action="store_true", help=f"also {' and '.join(ONCE)}, once each")
    parser.add_argument("--only", nargs="*", metavar="W", help="these workloads, --repeat times each; writes no result")
    parser.add_argument("--report", action="store_true", help="end with 0 even where a bound is missed")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path, figures = model_or_skip(args.model), {"machine": machine(), "threads": args.threads, "dtype": "bfloat16"}
    chosen = [w for w in WORKLOADS if (w.name in args.only if args.only else args.all or w.name not in ONCE)]
    if args.quick:
        chosen = [Workload("W1", 1, 16, 8), Workload("W3", 4, 16, 8), Workload("W5", 3, 24, 4, shared=16)]
    with Engine.start(config(path, args.threads), plugins={"watch": Watch}) as engine:
        peer = load_peer(path)
        results = [
            measure(engine, peer, w, 1 if args.quick or (w.name in ONCE and not args.only) else args.repeat)
            for w in chosen
        ]
    show(results)
    if not args.quick and not args.only:
        write("peers", {**figures, "repeat": args.repeat, "workloads": results})
        draw(results)
    missed = [r["name"] for r in results if r["name"] in BOUND_ON and r["ratios"]["decode"] < BOUND]
    if missed:
        print(f"decode is below {BOUND} times {PEER} in {', '.join(missed)}")
    return 1 if missed and not args.report and not args.quick else 0


if __name__ == "__main__":
    sys.exit(main())
