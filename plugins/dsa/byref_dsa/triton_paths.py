# mypy: disable-error-code="import-not-found,import-untyped"
"""Indexing and attention by the Triton kernels: which shapes they are launched with. Knows pools and rows, no layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import triton
from torch import Tensor

from byref.contract.roles import Pool
from byref_dsa.attention import GatheredAttention, Slots
from byref_dsa.indexing import Selector
from byref_dsa.kernels import attend_kernel, score_kernel

Partial = tuple[Tensor, Tensor, Tensor]
"""Sums [parts, rows, heads, value dim], peaks and totals [parts, rows, heads], fp32."""
BLOCK_ROWS = 8
"""Rows of one program that share a block of keys, at most."""
BLOCK_KEYS = 64
BLOCK_ENTRIES = 32
BLOCK_HEADS = 16
SPLIT_ENTRIES = 256
"""Entries of one part, at least, where few rows are there."""
MOST_SPLITS = 8
FEW_ROWS = 64
"""Up to so many rows their entries are split among programs."""


class TritonSelector(Selector):
    """As `Selector`; scores are computed where the keys lie."""

    about: ClassVar[str] = "triton: scores where the keys lie, the best by score and position"

    def _score(self, q: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
        return score(q, self._pool.data, slots, weights)


class TritonGathered(GatheredAttention):
    """As `GatheredAttention`; entries are read where they lie."""

    about: ClassVar[str] = "triton: each row reads the entries it sees, where they lie"

    def _attend(self, q: Tensor, parts: list[tuple[Pool, Slots]]) -> Tensor:
        spec = self._spec
        found = [attend(q, pool.data, slots, seen, spec.scale, spec.value_dim) for pool, (slots, seen) in parts]
        return merge(found, self._sinks).flatten(1).to(q.dtype)


def score(q: Tensor, data: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """q [requests, width, heads, dim], data [any, dim], slots [requests, keys], weights [requests, width, heads] ->
    [requests, width, keys] fp32."""
    requests, width, heads, dim = q.shape
    keys = slots.shape[1]
    scores = torch.empty(requests, width, keys, dtype=torch.float32, device=q.device)
    rows = min(triton.next_power_of_2(width), BLOCK_ROWS)
    score_kernel[(requests * triton.cdiv(width, rows), triton.cdiv(keys, BLOCK_KEYS))](
        q.contiguous(),
        weights.contiguous(),
        data,
        slots.contiguous(),
        scores,
        (heads * dim) ** -0.5,
        width,
        keys,
        data.shape[1],
        HEADS=heads,
        DIM=dim,
        BLOCK_R=rows,
        BLOCK_H=min(max(triton.next_power_of_2(heads), 16), 64),
        BLOCK_N=BLOCK_KEYS,
        BLOCK_D=max(triton.next_power_of_2(dim), 16),
    )
    return scores


def attend(q: Tensor, data: Tensor, slots: Tensor, seen: Tensor, scale: float, value_dim: int) -> Partial:
    """q [rows, heads, key_dim], data [any, key_dim], slots and seen [rows, entries]."""
    rows, heads, key_dim = q.shape
    count = slots.shape[1]
    splits = min(triton.cdiv(count, SPLIT_ENTRIES), MOST_SPLITS) if rows <= FEW_ROWS else 1
    sums = torch.empty(splits, rows, heads, value_dim, dtype=torch.float32, device=q.device)
    peaks = torch.empty(splits, rows, heads, dtype=torch.float32, device=q.device)
    totals = torch.empty_like(peaks)
    attend_kernel[(rows, triton.cdiv(heads, BLOCK_HEADS), splits)](
        q.contiguous(),
        data,
        slots.contiguous(),
        seen.to(torch.int8).contiguous(),
        sums,
        peaks,
        totals,
        scale,
        rows,
        count,
        data.shape[1],
        HEADS=heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        SPLITS=splits,
        BLOCK_H=BLOCK_HEADS,
        BLOCK_N=BLOCK_ENTRIES,
        BLOCK_V=max(triton.next_power_of_2(value_dim), 16),
        BLOCK_T=max(triton.next_power_of_2(key_dim - value_dim), 16),
    )
    return sums, peaks, totals


def merge(parts: Sequence[Partial], sinks: Tensor | None) -> Tensor:
    """The parts of each row and head become its output [rows, heads, value dim] fp32; zeros where it saw nothing."""
    sums, peaks, totals = (torch.cat(each) for each in zip(*parts, strict=True))
    top = peaks.amax(0)
    if sinks is not None:
        top = torch.maximum(top, sinks.float())
    weights = torch.exp(peaks - top)
    total = (weights * totals).sum(0)
    if sinks is not None:
        total = total + torch.exp(sinks.float() - top)
    out = (sums * weights.unsqueeze(-1)).sum(0) / total.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return out.masked_fill_((totals == 0).all(0).unsqueeze(-1), 0.0)
