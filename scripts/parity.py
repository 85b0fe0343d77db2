"""Prints how far every model family is from transformers, in the ways that its rows reach a forward.

    python scripts/parity.py            the table
    python scripts/parity.py --write    the table, into docs/parity.md

Each cell is the largest difference of a log-probability, in fp32 on a tiny random checkpoint that transformers saved,
over the likeliest tokens of every position. A cell over the tolerance is marked, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import torch  # noqa: E402
import transformers  # noqa: E402
from checkpoints import VOCABULARY  # noqa: E402
from engines import greedy, one_per_step, start, together  # noqa: E402
from equality import TOLERANCE, TOP, Scores, TransformersOracle, assert_tokens  # noqa: E402
from families import EVERY, FAMILIES, SPARSE, random_model, save_family  # noqa: E402
from gguf_files import write_family  # noqa: E402

PAGE = ROOT / "docs" / "parity.md"
TOKENS = 24
COLUMNS = ("prefill", "chunks of 1", "of 3", "of 16", "decode", "mixed", "GGUF")
FORCED = {"prefill": 64, "chunks of 1": 1, "of 3": 3, "of 16": 16}
FILES = {"Mistral": {"sliding_window": None}, "Qwen2": {"use_sliding_window": False}}
"""What no GGUF file of these families can say, and is left out of it."""
GEMMA3_FILE = {"layer_types": ["sliding_attention"] * 2, "query_pre_attn_scalar": 24}


def prompts(name: str) -> list[list[int]]:
    draw, lengths = random.Random(0), (40, 33, 64, 47) if name == "Phi-3" else (1, 2, 3, 17, 5, 40, 64, 16)
    return [[draw.randrange(VOCABULARY) for _ in range(n)] for n in lengths]


def worst(found: Scores, expected: Scores) -> float:
    """The largest difference over tokens that both name."""
    pairs = [(mine, theirs) for mine, theirs in zip(found, expected, strict=True) if theirs is not None]
    return max(abs(mine[token] - theirs[token]) for mine, theirs in pairs for token in mine.keys() & theirs.keys())


def row(name: str, folder: Path) -> Iterator[float]:
    """The cells of one family."""
    plugins = {"enable": ["models", "dsa"] if name in SPARSE else ["models"]}
    save_family(folder, name)
    oracle = TransformersOracle(transformers.AutoModelForCausalLM.from_pretrained(folder))
    asked = prompts(name)
    texts = [[*prompt, *oracle.tokens(prompt, TOKENS)] for prompt in asked]
    scores = [oracle.scores(text) for text in texts]
    for chunk in FORCED.values():
        with start(folder, None, plugins, chunk=chunk) as engine:
            found = together(engine, texts, greedy(1, prompt_logprobs=TOP))
            yield max(worst(one.prompt_logprobs, each) for one, each in zip(found, scores, strict=True))
    for serve in (together, one_per_step):
        with start(folder, None, plugins, chunk=16) as engine:
            cells = []
            for one, prompt, text, each in zip(
                serve(engine, asked, greedy(TOKENS, logprobs=TOP)), asked, texts, scores, strict=True
            ):
                assert_tokens(one, text[len(prompt) :], each[len(prompt) :])
                same = next((i for i, t in enumerate(one.token_ids) if t != text[len(prompt) + i]), TOKENS)
                cells.append(worst(one.logprobs[:same], each[len(prompt) :][:same]))
            yield max(cells)
    if name in FAMILIES:
        yield from_file(name, folder)


def from_file(name: str, folder: Path) -> float:
    """The same model written as a GGUF file in F32."""
    model = random_model(FAMILIES[name], **(GEMMA3_FILE if name == "Gemma 3" else FILES.get(name, {})))
    oracle = TransformersOracle(model)
    with start(write_family(folder / "tiny.gguf", name, model), chunk=16) as engine:
        found = one_per_step(engine, prompts(name), greedy(1, prompt_logprobs=TOP))
        return max(
            worst(one.prompt_logprobs, oracle.scores(prompt))
            for one, prompt in zip(found, prompts(name), strict=True)
            if len(prompt) > 1
        )


def table() -> tuple[str, bool]:
    """The table in Markdown, and whether every cell is within the tolerance."""
    lines = ["| family | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    good = True
    for name in EVERY:
        with tempfile.TemporaryDirectory() as folder:
            cells = list(row(name, Path(folder)))
        good &= max(cells) <= TOLERANCE
        marked = [f"{cell:.0e}" if cell <= TOLERANCE else f"**{cell:.0e}**" for cell in cells]
        marked += [] if name in FAMILIES else ["none written"]
        lines.append(f"| {name} | " + " | ".join(marked) + " |")
    return "\n".join(lines), good


def write(made: str) -> None:
    """Put the table in its place on the page."""
    text = PAGE.read_text()
    start_of, end_of = text.index("| family |"), text.index("\n\n", text.index("| family |"))
    PAGE.write_text(text[:start_of] + made + text[end_of:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/parity.md")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made, good = table()
    print(made)
    if asked.write:
        write(made)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
