"""Rows of logits with made-up requests, for tests of what happens between a forward and a choice."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byref.contract import LogitRows, Request, RowInfo, SamplingParams, Window
from byref.contract.step import Wanted

PROMPT = (1, 2, 3)


def info(
    params: SamplingParams,
    *,
    seed: int | None = 0,
    prompt: Sequence[int] = PROMPT,
    generated: Sequence[int] = (),
    drafts: Sequence[int] = (),
) -> RowInfo:
    """The row after the last draft of a request that has generated so much."""
    tokens = [*prompt, *generated]
    request = Request("r", tuple(prompt), params, seed or 0, tokens=tokens)
    window = Window("r", 1, "target", len(tokens) - 1, (tokens[-1], *drafts), len(drafts), wanted=Wanted.DRAFTS)
    return RowInfo(request, window, len(drafts), len(tokens) + len(drafts), tuple(drafts))


def rows_of(logits: Sequence[torch.Tensor], params: Sequence[SamplingParams]) -> LogitRows:
    """One request for each row."""
    return LogitRows(torch.stack(list(logits)), tuple(info(one, seed=one.seed) for one in params))
