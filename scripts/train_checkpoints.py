"""Trains and measures the checkpoints of tests/data/checkpoints, one after the other.

python scripts/train_checkpoints.py               everything: about an hour on two cores
python scripts/train_checkpoints.py eagle mtp     these parts, from the folders of what they follow
python scripts/train_checkpoints.py --measure     measure what is there, train nothing
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from train import parts
from train.data import gather

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "checkpoints"


def main() -> None:
    parser = argparse.ArgumentParser(prog="train_checkpoints.py", description="Train the small checkpoints.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts.PARTS)}; none is all of them")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the checkpoints lie")
    parser.add_argument("--measure", action="store_true", help="train nothing")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(parts.PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    torch.set_num_threads(asked.threads)
    text = gather()
    plan = parts.FULL
    parts.write_held_out(asked.out, text, plan)
    for name in asked.parts or parts.PARTS:
        if not asked.measure:
            parts.PARTS[name].train(asked.out, text, plan, name)
        print(parts.PARTS[name].measure(asked.out, text, plan), flush=True)


if __name__ == "__main__":
    main()
