"""From logits to one fixed choice per row: a pure function of (row, request, position, hypothetical prefix).

Knows sampling parameters; must not know windows' fates, neighbours or drafts' origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from byref.contract.requests import SamplingParams
from byref.contract.step import LogitRows, RowInfo
from byref.engine.noise import gumbel, stream
from byref.engine.processors import Processor

PROMPT_ROW: Final = -1
"""What stands for the choice of a row that only scores a prompt token."""
NO_TOKEN: Final = -2
"""What stands for the choice of a row whose every token is masked, or whose logits are no numbers."""
HEAD: Final = -8.0
"""Top-p looks first at what is so near to the likeliest token."""
FEW: Final = 512
"""It sorts so many values at most, but for equal ones."""

Asked = Mapping[int, tuple[Processor, ...]]
"""By number of a row: what its request's parameters ask for."""


def process(
    logits: Tensor,
    infos: tuple[RowInfo, ...],
    vocabulary: int,
    asked: Asked,
    adjust: Callable[[LogitRows], None] | None,
) -> tuple[LogitRows, list[int]]:
    """The rows, cut to the real vocabulary, and the token each yields: processors, plugins, sampling.

    Where no plugin adjusts, only rows that ask for it are copied, and the others stay in the model's dtype: their
    order is the same, and greedy requests ask for nothing else.
    """
    logits = logits[:, :vocabulary]
    edited = {i: logits[i].float().clone() for i in asked} if adjust is None else {}
    if adjust is not None:
        logits = logits.to(torch.float32, copy=True)
    for i, processors in asked.items():
        for processor in processors:
            processor(edited[i] if edited else logits[i], infos[i])
    rows = LogitRows(logits, infos, edited)
    if adjust is not None:
        adjust(rows)
    return rows, choose(rows, edited)


def choose(rows: LogitRows, edited: Container[int] = ()) -> list[int]:
    """The token that each row's processed distribution yields under its own noise; PROMPT_ROW for prompt rows,
    NO_TOKEN where there is none. Rows in `edited` are not the batch's own."""
    chosen = [PROMPT_ROW] * len(rows)
    greedy = []
    for i, info in enumerate(rows.infos):
        if info.is_prompt:
            continue
        if info.request.params.temperature > 0:
            chosen[i] = sample(rows.processed(i), info.request.params, info.request.seed, info.position)
        elif i in edited:
            chosen[i] = _checked(rows.processed(i)[None])[0]
        else:
            greedy.append(i)
    if greedy:
        logits = rows.logits if len(greedy) == len(rows) else rows.logits[greedy]
        for i, token in zip(greedy, _checked(logits), strict=True):
            chosen[i] = token
    return chosen


def _likeliest(logits: Tensor) -> list[int]:
    """The argmax of each row, the first of equals. On a CPU numpy's is 20 times faster in bfloat16, 10 in float32."""
    held: Any = logits.float().numpy() if logits.is_cpu else logits
    found: list[int] = held.argmax(-1).tolist()
    return found


def _checked(logits: Tensor) -> list[int]:
    """The argmax of each row; NO_TOKEN where that is masked or no number."""
    found = _likeliest(logits)
    values: list[float] = logits.gather(1, torch.tensor(found, device=logits.device)[:, None]).squeeze(1).tolist()
    return [token if value > -math.inf else NO_TOKEN for token, value in zip(found, values, strict=True)]


def sample(logits: Tensor, params: SamplingParams, seed: int, position: int) -> int:
    """Gumbel-max over what temperature, top-k, top-p and min-p leave of logits [vocabulary]; NO_TOKEN if nothing."""
    tokens, values = survivors(scale(logits, params.temperature), params)
    winner = _checked(gumbel([stream(seed, position)], tokens).add_(values))[0] if len(tokens) else NO_TOKEN
    return winner if winner == NO_TOKEN else int(tokens[winner])


def scale(logits: Tensor, temperature: float) -> Tensor:
    """[vocabulary] -> the same in fp32, the likeliest at 0, divided by the temperature however small that is."""
    limits = torch.finfo(torch.float32)
    logits = logits.float().clamp(max=limits.max)  # a plugin may force a token by infinity
    return logits.sub_(logits.max()).div_(max(temperature, limits.tiny))


def survivors(scaled: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Token ids [n], ascending, that truncation leaves, and their values. Ties at a boundary all stay, so order never
    matters. Where nothing is truncated, masked tokens are among them: their score is -inf all the same.
    """
    tokens, values = torch.arange(len(scaled), device=scaled.device), scaled
    if 0 < params.top_k < len(scaled):
        tokens, values = _keep(tokens, values, float(scaled.topk(params.top_k).values[-1]))
    if params.top_p < 1:
        tokens, values = _keep(tokens, values, _nucleus_floor(values, params.top_p))
    if params.min_p > 0:
        tokens, values = _keep(tokens, values, math.log(params.min_p))
    return tokens, values


def _keep(tokens: Tensor, values: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    at = _at_least(values, floor)
    return tokens[at], values[at]


def _nucleus_floor(scaled: Tensor, top_p: float) -> float:
    """The smallest logit within the smallest likeliest set whose probability reaches top_p (Holtzman et al. 2020)."""
    needed = top_p * float(scaled.exp().sum(dtype=torch.float64))
    above, values = _around(scaled.numpy(), needed) if scaled.is_cpu else (0.0, scaled)
    ordered = _descending(values)
    reached = _at_least(ordered.double().exp().cumsum(0).add_(above), needed)
    return float(ordered[reached[0]]) if len(reached) else -math.inf


def _around(values: Any, needed: float) -> tuple[float, Tensor]:
    """A few values among which the sum of exp, from the largest down, reaches what is needed; and the sum above them.

    By bisection: sorting a flat distribution whole takes five times as long.
    """
    above, pivot = 0.0, np.float32(HEAD)
    while len(values) > FEW:
        over = values >= pivot
        upper = values[np.flatnonzero(over)]
        total = above + float(np.exp(upper, dtype=np.float64).sum())
        if total >= needed:
            values = upper
        else:
            above, values = total, values[np.flatnonzero(~over & (values > -np.inf))]
        low, high = values.min(initial=0.0), values.max(initial=-np.inf)
        if low >= high:  # all alike, or none left
            break
        middle = (low + high) / 2
        pivot = middle if middle > low else high
    return above, torch.from_numpy(values)


def _at_least(values: Tensor, floor: float) -> Tensor:
    """Where [n] values are finite, and `floor` or more. On a CPU numpy's search is five times as fast."""
    kept = values >= max(floor, torch.finfo(torch.float32).min)
    return torch.from_numpy(np.flatnonzero(kept.numpy())) if kept.is_cpu else kept.nonzero().squeeze(-1)


def _descending(values: Tensor) -> Tensor:
    """[n] sorted; on a CPU by numpy, three times as fast."""
    if values.is_cpu:
        return torch.from_numpy(np.sort(values.numpy())[::-1].copy())
    return values.sort(descending=True).values


def token_logprobs(logits: Tensor, token: int, top: int) -> dict[int, float]:
    """Log-probabilities of `token` and of the `top` likeliest tokens, of the model's own distribution.

    logits [vocabulary]; before bias, masks and temperature.
    """
    logprobs = logits.float().log_softmax(-1)
    ids: Sequence[int] = logprobs.topk(min(top, len(logprobs))).indices.tolist() if top else []
    found = list(dict.fromkeys((token, *ids)))
    return dict(zip(found, logprobs[found].tolist(), strict=True))
