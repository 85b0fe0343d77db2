"""The checkpoints as parts that build on each other's folders. Knows which steps make them and what is written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from train import figures
from train.data import Text
from train.eagle import head_config
from train.figures import DENSE, EAGLE, LLAMA, SPARSE, Figures, Sizes
from train.heads import new_mtp, train_eagle, train_mtp
from train.indexer import Stages, train_sparse
from train.loop import Stage
from train.save import (
    load_deepseek,
    load_llama,
    save_deepseek,
    save_eagle,
    save_llama,
    write_json,
)
from train.target import train_deepseek, train_llama


@dataclass(frozen=True)
class Plan:
    """How long every part learns, and how much is measured."""

    llama: Stage
    eagle: Stage
    deepseek: Stage
    mtp: Stage
    sparse: Stages
    sizes: Sizes


FULL = Plan(
    llama=Stage(2600, 8, 256),
    eagle=Stage(600, 8, 192),
    deepseek=Stage(2400, 8, 256),
    mtp=Stage(400, 8, 128),
    sparse=Stages(
        warm=Stage(100, 4, 256), sparse=Stage(500, 4, 256), module_warm=Stage(30, 8, 128), module=Stage(150, 8, 128)
    ),
    sizes=Sizes(),
)
"""Of the committed checkpoints."""


@dataclass(frozen=True)
class Part:
    """How a part is trained into its folder, and how it is measured from there."""

    folder: str
    run: Callable[[Path, Text, Plan], None]
    figures: Callable[[Path, Text, Sizes], Figures]

    def train(self, out: Path, text: Text, plan: Plan, name: str) -> None:
        """Train, write the folder, note the text, the versions, and under the part's name its stage and its time."""
        start = time.perf_counter()
        (out / self.folder).mkdir(parents=True, exist_ok=True)
        self.run(out, text, plan)
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        sizes = {"train": len(text.train), "held_out": len(text.held_out), "digest": text.digest}
        seconds = round(time.perf_counter() - start)
        own = {"stage": asdict(getattr(plan, name)), "seconds": seconds}
        self._note(out, {"text": sizes, "versions": versions, "parts": self._noted(out).get("parts", {}) | {name: own}})

    def measure(self, out: Path, text: Text, plan: Plan) -> Figures:
        """Measure the folder, note the figures there and return them."""
        found = self.figures(out, text, plan.sizes)
        self._note(out, {"sizes": asdict(plan.sizes), "figures": found})
        return found

    def _note(self, out: Path, said: dict[str, Any]) -> None:
        write_json(out / self.folder / "training.json", self._noted(out) | said)

    def _noted(self, out: Path) -> dict[str, Any]:
        path = out / self.folder / "training.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_held_out(out: Path, text: Text, plan: Plan) -> None:
    """held_out.json: the measured prompts, and windows for the bits per byte, as token ids."""
    out.mkdir(parents=True, exist_ok=True)
    sizes = plan.sizes
    said = {"prompts": text.windows(sizes.prompts, sizes.prompt), "windows": text.windows(sizes.windows, sizes.length)}
    found = {name: tokens.tolist() for name, tokens in said.items()}
    (out / "held_out.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


def _llama(out: Path, text: Text, plan: Plan) -> None:
    save_llama(out / LLAMA, train_llama(text, plan.llama))


def _eagle(out: Path, text: Text, plan: Plan) -> None:
    target = load_llama(out / LLAMA)
    save_eagle(out / EAGLE, train_eagle(target, text, plan.eagle), head_config(target.config))


def _deepseek(out: Path, text: Text, plan: Plan) -> None:
    target = train_deepseek(text, plan.deepseek)
    save_deepseek(out / DENSE, target, new_mtp(target))


def _mtp(out: Path, text: Text, plan: Plan) -> None:
    target, _ = load_deepseek(out / DENSE)
    save_deepseek(out / DENSE, target, train_mtp(new_mtp(target), target, text, plan.mtp))


def _sparse(out: Path, text: Text, plan: Plan) -> None:
    save_deepseek(out / SPARSE, *train_sparse(*load_deepseek(out / DENSE), text, plan.sparse))


PARTS = {
    "llama": Part(LLAMA, _llama, figures.of_llama),
    "eagle": Part(EAGLE, _eagle, figures.of_eagle),
    "deepseek": Part(DENSE, _deepseek, figures.of_deepseek),
    "mtp": Part(DENSE, _mtp, figures.of_mtp),
    "sparse": Part(SPARSE, _sparse, figures.of_sparse),
}
"""In the order in which they build on each other."""
