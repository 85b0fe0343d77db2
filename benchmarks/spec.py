"""Speculative decoding against plain decoding, in turn: repetitive and free text with one stream, and 16 streams, by
drafter and dtype.

The prompts of one stream are in `benchmarks/prompts`; 16 streams go on from slices of the Python manual, each to a
length of its own, so that neither engine has all requests end at once. Ends with 1 where a bound is missed, unless
--report.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from common import SEED, arguments, config, english, machine, model_or_skip, picture, table, write

from byref.config import Config
from byref.contract.requests import SamplingParams
from byref.loading import open_checkpoint
from byref_spec_decoding.bench import read_jobs
from byref_spec_decoding.measure import Job, Measured, compare, ways

PROMPTS = Path(__file__).parent / "prompts"
TEXTS = {"repetitive": 1, "free": 1, "streams": 16}
"""How many prompts of each at once."""
DRAFTERS = ("ngram", "suffix:remember=0", "self")
"""Every round has the same prompts: a drafter that remembers earlier answers would have them already."""
NEW = 160


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--drafter", action="append", help="instead of " + ", ".join(DRAFTERS))
    parser.add_argument("--dtype", action="append", help="instead of bfloat16 and float32")
    parser.add_argument("--text", action="append", choices=TEXTS)
    parser.add_argument("--report", action="store_true", help="print only: no bound")
    options = parser.parse_args()
    path = model_or_skip(options.model)
    late = [one for dtype in options.dtype or ("bfloat16", "float32") for one in missed(measure(path, dtype, options))]
    sys.exit(bool(late) and not options.report and not options.quick)


def measure(path: Path, dtype: str, options: Namespace) -> list[dict[str, Any]]:
    """A row for each text and drafter, in one dtype: shown, written and drawn."""
    rows: list[dict[str, Any]] = []
    before, settings = machine(), config(path, options.threads, dtype=dtype, max_context=2048)
    for text in options.text or TEXTS:
        jobs = jobs_of(text, settings, 8 if options.quick else NEW)
        jobs = jobs[: TEXTS[text]] if options.quick else jobs
        measured = compare(dict(ways(settings, options.drafter or DRAFTERS)), jobs, TEXTS[text], options.repeat)
        rows += [_row(dtype, text, one, measured[0]) for one in measured]
    table(SHOWN, [[row[name] for name in SHOWN] for row in rows])
    if not options.quick:
        write(f"spec-{dtype}", {"machine": before, "threads": options.threads, "new": NEW, "rows": rows})
        _draw(f"spec-{dtype}", rows)
    return rows


def jobs_of(text: str, settings: Config, new: int) -> list[Job]:
    """The prompts of a text and how far each is continued: `new` tokens, of streams about as many."""
    if text != "streams":
        return read_jobs(settings, PROMPTS / f"{text}.jsonl", SamplingParams(max_tokens=new, ignore_eos=True))
    prompts = english(open_checkpoint(settings.model.path).tokenizer(), 3 * TEXTS[text], 64)
    draw = Random(SEED)
    lengths = [draw.randint(new // 3, new) for _ in prompts]
    return [(list(p), SamplingParams(max_tokens=n, ignore_eos=True)) for p, n in zip(prompts, lengths, strict=True)]


SHOWN = ("dtype", "text", "name", "tokens/s", "ratio", "drafted", "accepted", "per window", "drafting", "equal")


def _row(dtype: str, text: str, one: Measured, plain: Measured) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "text": text,
        **asdict(one),
        "tokens/s": round(one.rate, 1),
        "ratio": round(one.ratio(plain), 3),
        "per window": round(one.accepted / one.windows, 2) if one.windows else 0.0,
        "drafting": round(one.drafting / one.seconds[-1], 4),
        "equal": one.same,
    }


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """The bounds of bf16 that do not hold, each in a sentence."""
    ratio = {(row["text"], row["name"]): row["ratio"] for row in rows if row["dtype"] == "bfloat16"}
    lookup = [ratio[key] for key in (("repetitive", DRAFTERS[0]), ("repetitive", DRAFTERS[1])) if key in ratio]
    found = [f"lookup on repetitive text: {max(lookup)} < 1.8"] if lookup and max(lookup) < 1.8 else []
    bounds = {("free", name): 0.97 for name in DRAFTERS} | {("streams", name): 0.97 for name in DRAFTERS}
    bounds["free", "self"] = 1.2
    found += [f"{key}: {ratio[key]} < {least}" for key, least in bounds.items() if ratio.get(key, least) < least]
    for sentence in found:
        print("missed:", sentence)
    return found


def _draw(name: str, rows: list[dict[str, Any]]) -> None:
    """Ratios to plain decoding."""
    texts = sorted({row["text"] for row in rows})
    with picture(name, len(texts)) as figure:
        for axes, text in zip(figure.axes, texts, strict=True):
            mine = [row for row in rows if row["text"] == text]
            bars = axes.bar([row["name"] for row in mine], [row["ratio"] for row in mine])
            axes.bar_label(bars, fmt="%.2f")
            axes.axhline(1.0, color="grey", linewidth=0.8)
            axes.set(title=f"{mine[0]['dtype']}, {text}", ylabel="tokens/s over plain decoding")
            axes.margins(y=0.1)


if __name__ == "__main__":
    main()
