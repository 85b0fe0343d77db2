"""Index scores and the choice of the best, in plain torch. Knows shapes; must not know requests, pools or layers."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

BLOCK: Final = 1 << 22
"""Products of single heads that exist at once."""
_MAGNITUDE: Final = 0x7FFFFFFF


def index_scores(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """sum over heads of weight * relu(q . k), times (heads * dim) ** -0.5, in fp32.

    Args:
        q: [requests, width, heads, dim].
        keys: [requests, keys, dim].
        weights: [requests, width, heads].

    Returns:
        [requests, width, keys] fp32.
    """
    requests, width, heads, dim = q.shape
    count = keys.shape[1]
    weights = weights.float() * (heads * dim) ** -0.5
    scores = torch.empty(requests, width, count, dtype=torch.float32, device=q.device)
    wide = max(min(BLOCK // max(heads * count, 1), width), 1)
    many = max(min(BLOCK // max(heads * count * wide, 1), requests), 1)
    for first in range(0, requests, many):
        some = slice(first, first + many)
        turned = keys[some].float().transpose(1, 2)
        for row in range(0, width, wide):
            rows = slice(row, row + wide)
            each = q[some, rows].float()
            by_head = torch.bmm(each.flatten(1, 2), turned).relu_().unflatten(1, each.shape[1:3])
            torch.matmul(weights[some, rows].unsqueeze(2), by_head, out=scores[some, rows].unsqueeze(2))
    return scores


def best(scores: Tensor, seen: Tensor, top_k: int) -> Tensor:
    """The `top_k` best that a row sees, best first; of equal scores the lowest position; -1 behind the last.

    Score and position are one whole number, so that no two are equal and how rows are cut into forwards cannot change
    the choice.

    Args:
        scores: [..., keys] fp32.
        seen: [..., keys] bool.
        top_k: at most the number of keys.

    Returns:
        [..., top_k] int64.
    """
    bits = (scores + 0.0).view(torch.int32)  # minus zero becomes zero
    ordered = bits ^ ((bits >> 31) & _MAGNITUDE)  # integers in the order of the scores
    position = torch.arange(scores.shape[-1], device=scores.device)
    number = (ordered.to(torch.int64) << 32) + (_MAGNITUDE - position)
    number = number.masked_fill_(~seen, torch.iinfo(torch.int64).min)
    found = number.topk(top_k)
    return found.indices.masked_fill_(found.values == torch.iinfo(torch.int64).min, -1)
