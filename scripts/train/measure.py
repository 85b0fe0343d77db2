"""What is measured on the held-out text: bits per byte, accepted drafts, selection over long contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from train.attention import LatentAttention
from train.data import EOS, Text
from train.deepseek import DeepSeek
from train.ngram import NGram, lookup
from train.target import next_token_loss
from train.unroll import STEPS, Head, drafts

Logits = Callable[[Tensor], Tensor]
"""tokens [batch, length] -> logits [batch, length, vocabulary]."""
LONGEST_SUFFIXES = (3, 5, 8, 16)
"""Settings of prompt lookup of which the best one counts."""


@torch.no_grad()
def bits(logits: Logits, windows: Tensor, batch: int = 16) -> float:
    """Mean bits per token of windows [count, length]."""
    parts = [next_token_loss(logits(part), part).item() * len(part) for part in windows.split(batch)]
    return sum(parts) / len(windows) / math.log(2)


def ngram_bits(text: Text, windows: Tensor, order: int) -> float:
    """Bits per token of an n-gram model of the training text."""
    return NGram(text.train.long().numpy(), order).bits(windows.numpy())


@torch.no_grad()
def continued(logits: Logits, prompts: Tensor, count: int) -> Tensor:
    """prompts [batch, length] with the target's `count` greedy tokens behind them."""
    tokens = prompts
    for _ in range(count):
        tokens = torch.cat([tokens, logits(tokens)[:, -1:].argmax(dim=-1)], dim=1)
    return tokens


def accepted(text: Sequence[int], start: int, drafted: Callable[[int], Sequence[int]]) -> Iterator[int]:
    """Drafts accepted in each step of generating text[start:], where `drafted(n)` follow the first n tokens."""
    known = start + 1  # the target's first own token comes out of the prompt, before anything is drafted
    end = text.index(EOS, start) if EOS in text[start:] else len(text)
    while known < end:
        wanted, count = text[known:end], 0
        for draft in drafted(known)[: len(wanted)]:
            if draft != wanted[count]:
                break
            count += 1
        if len(wanted) >= STEPS:  # a step that the end cuts short says nothing of the drafter
            yield count
        known += count + 1


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def acceptance(head: Head, taps: Tensor, texts: Tensor, start: int) -> dict[str, float]:
    """Mean accepted drafts per step of the head and of prompt lookup; the head's acceptance at each draft's place.

    texts [batch, length] are the target's own from `start` on, taps [batch, length, any] what it computed over them.
    """
    drafted = drafts(head, taps, texts).tolist()
    counts = [
        n
        for text, mine in zip(texts.tolist(), drafted, strict=True)
        for n in accepted(text, start, lambda known, mine=mine: mine[known - 2])
    ]
    reached = [sum(n >= i for n in counts) for i in range(STEPS + 1)]
    places = {f"place_{i}": reached[i] / max(1, reached[i - 1]) for i in range(1, STEPS + 1)}
    found = {"head": mean(counts), "lookup": max(looked_up(texts, start, longest) for longest in LONGEST_SUFFIXES)}
    return {name: round(value, 4) for name, value in (found | places).items()}


def looked_up(texts: Tensor, start: int, longest: int) -> float:
    """Mean accepted drafts per step of prompt lookup."""
    return mean(
        [
            n
            for text in texts.tolist()
            for n in accepted(text, start, lambda known, text=text: lookup(text[:known], STEPS, longest))
        ]
    )


@torch.no_grad()
def selection_bits(model: DeepSeek, windows: Tensor) -> dict[str, float]:
    """Bits per token of attention to the selected rows, to all, and to as many drawn by chance."""
    layers = [part for part in model.modules() if isinstance(part, LatentAttention)]
    found = {}
    for name in ("selected", "dense", "shuffled"):
        torch.manual_seed(0)
        for layer in layers:
            layer.dense, layer.shuffled = name == "dense", name == "shuffled"
        found[name] = bits(lambda tokens: model(tokens)[1], windows, batch=4)
    for layer in layers:
        layer.dense = layer.shuffled = False
    return found
