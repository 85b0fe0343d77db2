"""The perplexity of the published models on one text, here and in llama.cpp, from the same files.

    python benchmarks/perplexity.py            the table
    python benchmarks/perplexity.py --write    the table, into docs/parity.md

Models that have not been pulled are left out. Ends with 1 where one differs by more than `BOUND`.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from common import THREADS, config

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import llamacpp  # noqa: E402

from byref.contract.errors import ModelError  # noqa: E402
from byref.contract.requests import SamplingParams  # noqa: E402
from byref.engine import Engine  # noqa: E402
from byref.loading import open_checkpoint  # noqa: E402

PAGE = ROOT / "docs" / "parity.md"
HEAD = "| model | tokens | byref | llama.cpp | apart |"
TEXT = ROOT / "LICENSE"
TOKENS = 1500
MODELS = ("smollm2", "gemma3-270m")
BOUND = 0.01


def perplexity(path: Path, tokens: int, threads: int) -> tuple[list[int], float]:
    """The text's ids, and exp of their mean negative log-probability in fp32, the first one's left out."""
    sizes = {"max_requests": 1, "max_rows": 256, "chunk": 256, "max_context": tokens + 1, "capture": "off"}
    with Engine.start(config(path, threads, dtype="float32", **sizes)) as engine:
        ids = engine.tokenizer.encode(TEXT.read_text())[:tokens]
        (done,) = engine.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=0))
        scores = [row[token] for row, token in zip(done.prompt_logprobs or (), ids, strict=True) if row is not None]
        return list(ids), math.exp(-math.fsum(scores) / len(scores))


def rows(tokens: int, threads: int) -> Iterator[tuple[str, int, float, float]]:
    """One for each model that is there."""
    for name in MODELS:
        try:
            path = open_checkpoint(name).path
        except ModelError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        ids, mine = perplexity(path, tokens, threads)
        yield path.name, len(ids), mine, llamacpp.perplexity(path, ids)


def write(table: str) -> None:
    """Put the table in its place on the page."""
    text = PAGE.read_text()
    first = text.index(HEAD)
    PAGE.write_text(text[:first] + table + text[text.index("\n\n", first) :])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--write", action="store_true", help="the table, into docs/parity.md")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found = list(rows(asked.tokens, asked.threads))
    lines = [
        f"| {name} | {count} | {mine:.3f} | {theirs:.3f} | {abs(mine / theirs - 1):.2%} |"
        for name, count, mine, theirs in found
    ]
    table = "\n".join([HEAD, "|---" * 5 + "|", *lines])
    print(table)
    if asked.write:
        write(table)
    return 0 if found and all(abs(mine / theirs - 1) <= BOUND for *_, mine, theirs in found) else 1


if __name__ == "__main__":
    sys.exit(main())
