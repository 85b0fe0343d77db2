"""Drafting by forwards of the draft role, one token after the other. Knows windows and lengths; no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from byref.contract.requests import Request
from byref.contract.roles import DRAFT, TARGET, RunForward, Sizing
from byref.contract.step import Wanted, Window
from byref.engine.noise import gumbel, stream
from byref.engine.processing import scale, survivors
from byref_spec_decoding.drafter import Draft, Round, Want
from byref_spec_decoding.odds import Odds, draw


def roll_out(round: Round, sizing: Sizing) -> Mapping[str, Draft]:
    """Chains for every want: the first forwards compute what the draft role has missed, later ones a row each."""
    wants = {want.request.id: want for want in round.wants if want.most}
    windows = [catch_up(want.request, sizing) for want in wants.values()]
    drafts = {id: Draft(()) for id in wants}
    for draft_step in range(max((want.most for want in wants.values()), default=0)):
        going = [window for window in windows if draft_step < wants[window.request].most]
        for logits, window in run(round.forward, going, sizing, draft_step):
            want = wants[window.request]
            picked = pick(logits, want, len(want.request.tokens) + draft_step)
            drafts[window.request] = drafts[window.request].then(*picked)
        windows = [follow(window, drafts[window.request].tokens[-1]) for window in going]
    return drafts


def catch_up(request: Request, sizing: Sizing) -> Window:
    """The rows of the draft role that are missing up to the newest token, whose logits draft the next."""
    start = request.lengths.get(DRAFT, 0)
    tokens = tuple(request.tokens[start:])
    return Window(
        request=request.id,
        row=request.row,
        role=DRAFT,
        start=start,
        tokens=tokens,
        prompt=len(tokens) > sizing.max_drafts + 1,
    )


def follow(window: Window, token: int) -> Window:
    """The row of a draft after the window's last."""
    return replace(window, start=window.end, tokens=(token,), drafts=1, prompt=False)


def run(
    forward: RunForward, windows: Sequence[Window], sizing: Sizing, draft_step: int
) -> Iterator[tuple[Tensor, Window]]:
    """Forwards of at most `max_rows` rows; for each window that wants one, the logits of its last row."""
    vocabulary = min(sizing.role(DRAFT).vocabulary, sizing.role(TARGET).vocabulary)
    for packed in pack(windows, sizing.max_rows):
        # What follows step 0 is the same at every step: two captured forwards serve all.
        logits = forward(DRAFT, packed, None, min(draft_step, 1))[:, :vocabulary]
        wanting = [window for window in packed if window.wanted is not Wanted.NONE]
        yield from zip(logits, wanting, strict=True)


def pack(windows: Sequence[Window], most: int) -> Iterator[list[Window]]:
    """The windows in forwards of at most `most` rows, long ones in pieces: only the last piece wants logits."""
    packed: list[Window] = []
    room = most
    for window in windows:
        rest = window
        while len(rest.tokens) > room:
            if room:
                packed.append(replace(rest, tokens=rest.tokens[:room], wanted=Wanted.NONE))
                rest = replace(rest, start=rest.start + room, tokens=rest.tokens[room:])
            yield packed
            packed, room = [], most
        packed.append(rest)
        room -= len(rest.tokens)
    if packed:
        yield packed


def pick(logits: Tensor, want: Want, position: int, ids: Tensor | None = None) -> tuple[int, Odds | None]:
    """The drafter's token for a position, the first of `rank`; where odds are wanted, drawn by noise of its own.

    Args: as of `rank`.
    """
    request = want.request
    if request.params.temperature == 0:
        likeliest = _argmax(logits)
        return (likeliest if ids is None else int(ids[likeliest])), None
    tokens, values = _drawable(logits, request, ids)
    if want.odds:
        return draw(tokens, values, request, position)
    return int(tokens[_argmax(values + gumbel([stream(request.seed, position)], tokens)[0])]), None


def rank(
    logits: Tensor, request: Request, position: int, n: int, ids: Tensor | None = None
) -> tuple[list[int], list[float]]:
    """The drafter's n best tokens for a position, and the logarithm of each one's share: in the order that the noise
    gives them which the target will draw with, so that the two agree as often as their distributions let them.

    Args:
        logits: [vocabulary] of the drafter.
        request: whose.
        position: index in the sequence of the token that is drafted.
        n: at most so many.
        ids: [vocabulary] int64: the target's ids of the drafter's tokens, where they are not the same.
    """
    tokens, values = _drawable(logits, request, ids)
    if request.params.temperature > 0:
        values = values + gumbel([stream(request.seed, position)], tokens)[0]
    shares, order = values.log_softmax(0).topk(min(n, len(values)))
    return tokens[order].tolist(), shares.tolist()


def _drawable(logits: Tensor, request: Request, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """The target's ids [n] of the tokens that the request's sampling leaves, and their values."""
    params = request.params
    if params.temperature > 0:
        at, values = survivors(scale(logits, params.temperature), params)
    if params.temperature == 0 or not len(at):  # none stays where logits are no numbers: then any guess is as good
        at, values = torch.arange(len(logits), device=logits.device), logits.float().nan_to_num()
    return (at if ids is None else ids[at]), values


def _argmax(values: Tensor) -> int:
    """On a CPU numpy's is many times as fast."""
    return int(values.float().numpy().argmax() if values.is_cpu else values.argmax())
