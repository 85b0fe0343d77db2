"""From logits to one fixed choice per row: a pure function of (row, request, position, hypothetical prefix).

Knows sampling parameters; must not know windows' fates, neighbours or drafts' origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from byref.contract.requests import SamplingParams
from byref.contract.step import LogitRows, RowInfo
from byref.engine.noise import gumbel

PROMPT_ROW: Final = -1
"""What stands for the choice of a row that only scores a prompt token."""
NUCLEUS: Final = 1024
"""Candidates that top-p looks at before it sorts the whole vocabulary."""


def choose(rows: LogitRows) -> list[int]:
    """The token that each row's processed distribution yields under its own noise; PROMPT_ROW for prompt rows."""
    chosen = rows.logits.argmax(-1).tolist() if len(rows) else []
    for i, info in enumerate(rows.infos):
        if info.is_prompt:
            chosen[i] = PROMPT_ROW
        elif info.request.params.temperature > 0:
            chosen[i] = sample(rows.logits[i], info.request.params, info.request.seed, info.position)
    return chosen


def sample(logits: Tensor, params: SamplingParams, seed: int, position: int) -> int:
    """Gumbel-max over what temperature, top-k and top-p leave of logits [vocabulary]."""
    scaled = logits.double() / params.temperature
    tokens = survivors(scaled, params)
    scores = scaled[tokens] + gumbel(seed, position, tokens)
    return int(tokens[scores.argmax()])


def survivors(scaled: Tensor, params: SamplingParams) -> Tensor:
    """Token ids [n], ascending, that truncation leaves. Ties at a boundary all stay, so order never matters."""
    floor = float("-inf")
    if 0 < params.top_k < scaled.numel():
        floor = float(scaled.topk(params.top_k).values[-1])
    if params.top_p < 1:
        floor = _nucleus_floor(scaled.masked_fill(scaled < floor, float("-inf")), params.top_p)
    keep = scaled >= floor
    return (keep & scaled.isfinite()).nonzero().squeeze(-1)


def _nucleus_floor(scaled: Tensor, top_p: float) -> float:
    """The smallest logit within the smallest likeliest set whose probability reaches top_p (Holtzman et al. 2020)."""
    total = scaled.logsumexp(0)
    for n in (min(NUCLEUS, scaled.numel()), scaled.numel()):
        head = scaled.topk(n).values
        mass = (head - total).exp().cumsum(0)
        reached = mass >= top_p
        if bool(reached.any()):
            return float(head[int(reached.int().argmax())])
    return float("-inf")


def logit_rows(
    logits: Tensor, infos: tuple[RowInfo, ...], vocabulary: int, adjust: Callable[[LogitRows], None] | None
) -> LogitRows:
    """Rows cut to the real vocabulary, and adjusted by plugins in place where any does.

    Without an adjuster and with greedy requests only, the logits stay in the model's dtype: their order
    is the same, and nothing else is asked of them.
    """
    logits = logits[:, :vocabulary]
    if adjust is not None:
        rows = LogitRows(logits.float().clone() if logits.dtype is torch.float32 else logits.float(), infos)
        adjust(rows)
        return rows
    return LogitRows(logits, infos)


def token_logprobs(logits: Tensor, token: int, top: int) -> dict[int, float]:
    """Log-probabilities of `token` and of the `top` likeliest tokens, of the model's own distribution.

    logits [vocabulary]; before bias, masks and temperature.
    """
    logprobs = logits.float().log_softmax(-1)
    ids: Sequence[int] = logprobs.topk(top).indices.tolist() if top else []
    return {i: float(logprobs[i]) for i in dict.fromkeys((token, *ids))}
