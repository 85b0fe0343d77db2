# ruff: noqa: ANN001, ANN201, N803, PLR0915  (a kernel takes pointers, names its constants in capitals, is one piece)
# mypy: ignore-errors
"""Triton kernels on pages: cache write, attention with split keys, merge of splits. Know pointers; nothing of requests.

One attention kernel serves decode and prefill: a program takes some rows of one request and all query heads of one KV
head (so that keys are read once for them), and one part of the keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

FAR = tl.constexpr(-1.0e30)
"""The score of what a row does not see; finite, so that a block without a visible key gives no NaN."""


@triton.jit
def write_kernel(values, data, table, rows, index, width, table_stride, per_page, BLOCK: tl.constexpr):
    """Entry `index[row]` of request row `rows[row]` becomes `values[row]`; padding goes to slot 0."""
    row = tl.program_id(0)
    request, entry = tl.load(rows + row), tl.load(index + row)
    page = tl.load(table + request * table_stride + entry // per_page, mask=request > 0, other=0)
    slot = tl.where(page > 0, page * per_page + entry % per_page, 0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + row * width + at, mask=at < width)
    tl.store(data + slot * width + at, value, mask=at < width)


@triton.jit
def attend_kernel(
    q,
    data,
    table,
    request_rows,
    starts,
    offsets,
    lengths,
    frontier,
    ancestors,
    positions,
    sums,
    peaks,
    totals,
    scale,
    softcap,
    width,
    table_stride,
    per_page,
    row_blocks,
    keys_at,
    values_at,
    rows,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    CAPPED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Partial softmax of one part of the keys: `sums` [splits, rows, heads, value dim], not divided yet, and by row and
    head the largest score (`peaks`) and the sum of weights (`totals`), all fp32."""
    request, block = tl.program_id(0) // row_blocks, tl.program_id(0) % row_blocks
    kv_head, split = tl.program_id(1), tl.program_id(2)
    start, end = tl.load(starts + request), tl.load(starts + request + 1)
    first = start + block * BLOCK_Q
    if first < end:
        m = tl.arange(0, BLOCK_M)
        row, head = first + m // GROUP, kv_head * GROUP + m % GROUP
        live = (row < end) & (m < BLOCK_Q * GROUP)
        d, v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
        of_query = (row * HEADS + head)[:, None] * KEY_DIM + d[None, :]
        query = tl.load(q + of_query, mask=live[:, None] & (d < KEY_DIM)[None, :], other=0.0)
        edge = tl.load(frontier + row, mask=live, other=0)
        family = tl.load(ancestors + row, mask=live, other=0)
        place = tl.load(positions + row, mask=live, other=0)
        length, offset = tl.load(lengths + request), tl.load(offsets + request)
        request_row = tl.load(request_rows + request)
        low = tl.zeros_like(length)
        if WINDOW > 0:
            low = tl.maximum(offset - WINDOW + 1, 0)
        part = tl.cdiv(tl.cdiv(length - low, SPLITS), BLOCK_N) * BLOCK_N
        low = low + split * part
        high = tl.minimum(low + part, length)
        peak = tl.full([BLOCK_M], FAR, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        out = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        for at in range(low, high, BLOCK_N):
            entry = at + tl.arange(0, BLOCK_N)
            there = entry < high
            page = tl.load(table + request_row * table_stride + entry // per_page, mask=there, other=0)
            there = there & (page > 0)
            slot = page * per_page + entry % per_page
            of_key = slot[None, :] * width + keys_at + kv_head * KEY_DIM + d[:, None]
            key = tl.load(data + of_key, mask=there[None, :] & (d < KEY_DIM)[:, None], other=0.0)
            scores = tl.dot(query, key, input_precision="ieee") * scale
            if CAPPED:
                # tanh by the exponential of what cannot overflow
                ratio = scores / softcap
                small = tl.exp(-2.0 * tl.abs(ratio))
                scores = softcap * tl.where(ratio < 0, small - 1.0, 1.0 - small) / (1.0 + small)
            ahead = entry[None, :] - edge[:, None]
            bit = tl.minimum(tl.maximum(ahead, 0), 63)
            seen = (ahead < 0) | (((family[:, None] >> bit) & 1) > 0)
            if WINDOW > 0:
                own = entry >= offset
                inside = tl.load(positions + start + entry - offset, mask=own & there, other=0)
                seen = seen & (place[:, None] - tl.where(own, inside, entry)[None, :] < WINDOW)
            seen = seen & there[None, :] & live[:, None]
            scores = tl.where(seen, scores, FAR)
            higher = tl.maximum(peak, tl.max(scores, 1))
            weights = tl.where(seen, tl.exp(scores - higher[:, None]), 0.0)
            shrink = tl.exp(peak - higher)
            of_value = slot[:, None] * width + values_at + kv_head * VALUE_DIM + v[None, :]
            value = tl.load(data + of_value, mask=there[:, None] & (v < VALUE_DIM)[None, :], other=0.0)
            out = out * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            total = total * shrink + tl.sum(weights, 1)
            peak = higher
        of_row = (split * rows + row) * HEADS + head
        tl.store(peaks + of_row, peak, mask=live)
        tl.store(totals + of_row, total, mask=live)
        of_out = of_row[:, None] * VALUE_DIM + v[None, :]
        tl.store(sums + of_out, out, mask=live[:, None] & (v < VALUE_DIM)[None, :])


@triton.jit
def merge_kernel(
    sums,
    peaks,
    totals,
    sinks,
    out,
    rows,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """The parts of one row and head become its output [value dim]; zeros where it saw nothing."""
    row, head = tl.program_id(0), tl.program_id(1)
    v = tl.arange(0, BLOCK_V)
    peak = tl.full([], FAR, tl.float32)
    if HAS_SINKS:
        peak = tl.load(sinks + head).to(tl.float32)
    for split in range(SPLITS):
        peak = tl.maximum(peak, tl.load(peaks + (split * rows + row) * HEADS + head))
    total = tl.zeros([], tl.float32)
    if HAS_SINKS:
        total = tl.exp(tl.load(sinks + head).to(tl.float32) - peak)
    merged = tl.zeros([BLOCK_V], tl.float32)
    for split in range(SPLITS):
        at = (split * rows + row) * HEADS + head
        weight = tl.exp(tl.load(peaks + at) - peak)
        total += weight * tl.load(totals + at)
        merged += weight * tl.load(sums + at * VALUE_DIM + v, mask=v < VALUE_DIM, other=0.0)
    merged = tl.where(total > 0, merged / tl.where(total > 0, total, 1.0), 0.0)
    tl.store(out + (row * HEADS + head) * VALUE_DIM + v, merged.to(out.dtype.element_ty), mask=v < VALUE_DIM)
