"""The figures of each checkpoint, from its folder. Knows folders and sizes; how a figure is found is in `measure`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train import measure
from train.data import Text
from train.eagle import AUX_LAYERS
from train.save import load_deepseek, load_eagle, load_llama
from train.target import LONGEST, hiddens

LLAMA, EAGLE, DENSE, SPARSE = "bytes-llama", "bytes-llama-eagle3", "bytes-deepseek", "bytes-deepseek-v32"
ORDER = 5
"""Of the n-gram model: a byte given the four before it. One order more is measured too."""
Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    prompts: int = 24
    prompt: int = 160
    continuation: int = 96
    windows: int = 48
    length: int = 256
    long_windows: int = 12


def of_llama(out: Path, text: Text, sizes: Sizes) -> Figures:
    """Bits per byte of the target and of n-gram models."""
    target = load_llama(out / LLAMA)
    return _language(lambda tokens: target(input_ids=tokens).logits, text, sizes)


def of_eagle(out: Path, text: Text, sizes: Sizes) -> Figures:
    """What of the head's drafts its target accepts."""
    target = load_llama(out / LLAMA)
    texts = _texts(lambda tokens: target(input_ids=tokens).logits, text, sizes)
    taps = hiddens(target, texts, AUX_LAYERS)[0]
    return {"accepted": measure.acceptance(load_eagle(out / EAGLE, target), taps, texts, sizes.prompt)}


def of_deepseek(out: Path, text: Text, sizes: Sizes, folder: str = DENSE) -> Figures:
    """Bits per byte of the target and of n-gram models."""
    target, _ = load_deepseek(out / folder)
    return _language(lambda tokens: target(tokens)[1], text, sizes)


def of_mtp(out: Path, text: Text, sizes: Sizes, folder: str = DENSE) -> Figures:
    """The target's figures, and what of the module's drafts it accepts."""
    target, module = load_deepseek(out / folder)
    texts = _texts(lambda tokens: target(tokens)[1], text, sizes)
    with torch.no_grad():
        taps = target(texts)[0]
    accepted = measure.acceptance(module, taps, texts, sizes.prompt)
    return of_deepseek(out, text, sizes, folder) | {"accepted": accepted}


def of_sparse(out: Path, text: Text, sizes: Sizes) -> Figures:
    """The same, and what the selection costs over windows longer than those of the training."""
    target, _ = load_deepseek(out / SPARSE)
    length = LONGEST * sizes.length
    windows = text.windows(sizes.long_windows, length)
    found = measure.selection_bits(target, windows)
    long = {"length": length, "index_topk": target.config.index_topk, **_rounded(found)}
    return of_mtp(out, text, sizes, SPARSE) | {"bits_per_byte_long": long}


def _texts(logits: measure.Logits, text: Text, sizes: Sizes) -> torch.Tensor:
    return measure.continued(logits, text.windows(sizes.prompts, sizes.prompt), sizes.continuation)


def _language(logits: measure.Logits, text: Text, sizes: Sizes) -> Figures:
    windows = text.windows(sizes.windows, sizes.length)
    found = {f"ngram_{order}": measure.ngram_bits(text, windows, order) for order in (ORDER, ORDER + 1)}
    return {"bits_per_byte": _rounded({"model": measure.bits(logits, windows), **found})}


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}
