"""Softmax attention over gathered entries. Knows shapes; must not know requests, pools or positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from byref.contract.specs import AttentionSpec

BLOCK: Final = 1 << 26
"""Scores of latent attention that exist at once."""
FOLD_ROWS: Final = 8
"""Up to so many rows per request the query heads of a KV head are folded into the query length: grouped
scaled-dot-product attention is slow on a CPU at decode."""


def fold_mask(mask: Tensor, grouped: int) -> Tensor:
    """mask [requests, width, keys] -> [requests, 1, width or grouped * width, keys], as `attend_entries` wants it."""
    requests, width, keys = mask.shape
    if width == 1 or width > FOLD_ROWS:
        return mask.unsqueeze(1)
    return mask[:, None].expand(requests, grouped, width, keys).reshape(requests, 1, grouped * width, keys)


def attend_entries(spec: AttentionSpec, q: Tensor, entries: Tensor, mask: Tensor, sinks: Tensor | None) -> Tensor:
    """q [requests, width, heads, key_dim], entries [requests, keys, entry width], folded mask ->
    [requests * width, heads * value_dim]."""
    if spec.form == "mla":
        return attend_latent(spec, q, entries, mask, sinks)
    requests, width, heads, dim = q.shape
    k, v = split_entries(spec, entries)
    kv_heads = k.shape[1]
    if width > FOLD_ROWS:
        group = heads // kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = _softmax(spec, q.transpose(1, 2), k, v, mask, sinks).transpose(1, 2)
    elif width == 1:
        out = _softmax(spec, q.view(requests, kv_heads, -1, dim), k, v, mask, sinks)
    else:
        folded = q.view(requests, width, kv_heads, -1, dim).permute(0, 2, 3, 1, 4).reshape(requests, kv_heads, -1, dim)
        out = _softmax(spec, folded, k, v, mask, sinks)
        out = out.view(requests, kv_heads, -1, width, spec.value_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(requests * width, -1)


def attend_latent(spec: AttentionSpec, q: Tensor, entries: Tensor, mask: Tensor, sinks: Tensor | None) -> Tensor:
    """The same where an entry is the key of every head, and its first part the value: two products per block of heads.

    Scaled-dot-product attention has no kernel for a value narrower than its key; what it does instead copies the keys.
    """
    requests, width, heads, dim = q.shape
    keys, values, count = entries.transpose(1, 2), entries[..., : spec.value_dim], entries.shape[1]
    out = q.new_empty(requests, heads, width, spec.value_dim)
    block = max(BLOCK // (requests * width * count), 1)
    for first in range(0, heads, block):
        some = slice(first, first + block)
        scores = torch.bmm(q[:, :, some].transpose(1, 2).reshape(requests, -1, dim), keys).float() * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        scores = scores.view(requests, -1, width, count) + mask
        if sinks is None:
            weights = scores.softmax(-1)
        else:
            column = sinks[some].float().view(1, -1, 1, 1).expand(requests, -1, width, 1)
            weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
        found = torch.bmm(weights.to(values.dtype).reshape(requests, -1, count), values)
        out[:, some] = found.view(requests, -1, width, spec.value_dim)
    return out.transpose(1, 2).reshape(requests * width, -1)


def attend_heads(spec: AttentionSpec, q: Tensor, table: Tensor, index: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The same over a table of entries cut into heads, as two batched products.

    q [requests, width, heads, dim], table [any, dim], index: the rows of the keys and those of the values, each
    [kv_heads * requests * keys], mask [kv_heads * requests, 1 or grouped * width, keys] ->
    [requests * width, heads * dim].
    """
    requests, width, _, dim = q.shape
    folded = q.view(requests, width, spec.kv_heads, -1, dim).permute(2, 0, 3, 1, 4).reshape(len(mask), -1, dim)
    k = table.index_select(0, index[0]).view(len(mask), -1, dim)
    weights = torch.baddbmm(mask, folded, k.transpose(1, 2), alpha=spec.scale).softmax(-1)
    del k  # the values take its memory, which is still in the cache
    v = table.index_select(0, index[1]).view(len(mask), -1, dim)
    out = torch.bmm(weights, v).view(spec.kv_heads, requests, -1, width, dim)
    return out.permute(1, 3, 0, 2, 4).reshape(requests * width, -1)


def split_entries(spec: AttentionSpec, entries: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [requests, kv heads, keys, dim], as views."""
    if spec.form == "mla":
        k = entries.unsqueeze(1)
        return k, k[..., : spec.value_dim]
    requests, length, _ = entries.shape
    keys = spec.kv_heads * spec.key_dim
    k = entries[..., :keys].view(requests, length, spec.kv_heads, spec.key_dim)
    v = entries[..., keys:].view(requests, length, spec.kv_heads, spec.value_dim)
    return k.transpose(1, 2), v.transpose(1, 2)


def _softmax(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor | None) -> Tensor:
    if spec.softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.scale)
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores + mask
    if sinks is None:
        return torch.matmul(scores.softmax(-1).to(v.dtype), v)
    # Query rows are [kv head, query head of it, row]: the sink of a query head, once per row.
    requests, kv_heads, rows, _ = scores.shape
    column = sinks.float().view(1, kv_heads, -1, 1).expand(requests, -1, -1, rows * kv_heads // sinks.numel())
    column = column.reshape(requests, kv_heads, rows, 1)
    return torch.matmul(torch.cat((scores, column), -1).softmax(-1)[..., :-1].to(v.dtype), v)
