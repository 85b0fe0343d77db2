# ruff: noqa: ANN001, ANN201, N803  (a kernel takes pointers, names its constants in capitals, is one piece)
# mypy: ignore-errors
"""Triton kernels of sparse attention: index scores, attention over gathered entries. Know pointers; no requests."""

from __future__ import annotations

import triton
import triton.language as tl

FAR = tl.constexpr(-1.0e30)
"""The score of what a row does not see; finite, so that a block without a visible entry gives no NaN."""


@triton.jit
def score_kernel(
    q,
    weights,
    data,
    slots,
    scores,
    scale,
    width,
    keys,
    stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Some rows of one request over one block of keys, which is read once for them: `scores` [rows, keys] fp32, the sum
    over heads of weight * relu(q . key) * scale."""
    blocks = tl.cdiv(width, BLOCK_R)
    request, first = tl.program_id(0) // blocks, (tl.program_id(0) % blocks) * BLOCK_R
    key = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    there = key < keys
    h, d = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    slot = tl.load(slots + request * keys + key, mask=there, other=0)
    of_key = slot[None, :] * stride + d[:, None]
    entry = tl.load(data + of_key, mask=there[None, :] & (d < DIM)[:, None], other=0.0)
    for r in range(BLOCK_R):
        inside = first + r < width
        row = request * width + first + r
        total = tl.zeros([BLOCK_N], tl.float32)
        for head in range(0, HEADS, BLOCK_H):
            live = (head + h < HEADS) & inside
            of_query = (row * HEADS + head + h)[:, None] * DIM + d[None, :]
            query = tl.load(q + of_query, mask=live[:, None] & (d < DIM)[None, :], other=0.0)
            weight = tl.load(weights + row * HEADS + head + h, mask=live, other=0.0).to(tl.float32)
            product = tl.dot(query, entry, input_precision="ieee")
            total += tl.sum(tl.maximum(product, 0.0) * weight[:, None], 0)
        tl.store(scores + row * keys + key, total * scale, mask=there & inside)


@triton.jit
def attend_kernel(
    q,
    data,
    slots,
    seen,
    sums,
    peaks,
    totals,
    scale,
    rows,
    count,
    stride,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Partial softmax of one row and some heads over one part of its entries: `sums` [splits, rows, heads, value dim],
    not divided yet, and by row and head the largest score (`peaks`) and the sum of weights (`totals`), all fp32.

    The leading VALUE_DIM elements of an entry are its value, and all of it its key: the rest of the key is read apart.
    """
    row, split = tl.program_id(0), tl.program_id(2)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    live = head < HEADS
    v, t = tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_T)
    at_query = (row * HEADS + head)[:, None] * KEY_DIM
    value_query = tl.load(q + at_query + v[None, :], mask=live[:, None] & (v < VALUE_DIM)[None, :], other=0.0)
    if KEY_DIM > VALUE_DIM:
        tail = VALUE_DIM + t
        tail_query = tl.load(q + at_query + tail[None, :], mask=live[:, None] & (tail < KEY_DIM)[None, :], other=0.0)
    part = tl.cdiv(tl.cdiv(count, SPLITS), BLOCK_N) * BLOCK_N
    low = split * part
    high = tl.minimum(low + part, count)
    peak = tl.full([BLOCK_H], FAR, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    out = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
    for at in range(low, high, BLOCK_N):
        n = at + tl.arange(0, BLOCK_N)
        visible = tl.load(seen + row * count + n, mask=n < high, other=0) > 0
        slot = tl.load(slots + row * count + n, mask=n < high, other=0)
        entry = tl.load(
            data + slot[:, None] * stride + v[None, :], mask=visible[:, None] & (v < VALUE_DIM)[None, :], other=0.0
        )
        scores = tl.dot(value_query, tl.trans(entry), input_precision="ieee")
        if KEY_DIM > VALUE_DIM:
            rest = tl.load(
                data + slot[:, None] * stride + tail[None, :],
                mask=visible[:, None] & (tail < KEY_DIM)[None, :],
                other=0.0,
            )
            scores += tl.dot(tail_query, tl.trans(rest), input_precision="ieee")
        scores = tl.where(visible[None, :], scores * scale, FAR)
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.where(visible[None, :], tl.exp(scores - higher[:, None]), 0.0)
        shrink = tl.exp(peak - higher)
        out = out * shrink[:, None] + tl.dot(weights.to(entry.dtype), entry, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        peak = higher
    of_row = (split * rows + row) * HEADS + head
    tl.store(peaks + of_row, peak, mask=live)
    tl.store(totals + of_row, total, mask=live)
    tl.store(sums + of_row[:, None] * VALUE_DIM + v[None, :], out, mask=live[:, None] & (v < VALUE_DIM)[None, :])
