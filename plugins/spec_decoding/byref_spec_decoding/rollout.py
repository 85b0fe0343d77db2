"""Drafting by forwards of the draft role, one token after the other. Knows windows and lengths; no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from byref.contract.requests import Request
from byref.contract.roles import DRAFT, TARGET, RunForward, Sizing
from byref.contract.step import Wanted, Window
from byref.engine.noise import gumbel, stream
from byref.engine.processing import scale, survivors
from byref_spec_decoding.drafter import Draft, Round

HEAD = 64
"""Of so many likeliest tokens a drafter draws: what lies behind them is next to never accepted."""


def roll_out(round: Round, sizing: Sizing) -> Mapping[str, Draft]:
    """Chains for every want: the first forwards compute what the draft role has missed, later ones a row each."""
    wants = {want.request.id: want for want in round.wants if want.most}
    windows = [catch_up(want.request, sizing) for want in wants.values()]
    drafted: dict[str, list[int]] = {id: [] for id in wants}
    for draft_step in range(max((want.most for want in wants.values()), default=0)):
        going = [window for window in windows if len(drafted[window.request]) < wants[window.request].most]
        for logits, window in run(round.forward, going, sizing, draft_step):
            request = wants[window.request].request
            drafted[request.id].append(pick(logits, request, len(request.tokens) + draft_step))
        windows = [follow(window, drafted[window.request][-1]) for window in going]
    return {id: Draft(tuple(tokens)) for id, tokens in drafted.items()}


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


def pick(logits: Tensor, request: Request, position: int, ids: Tensor | None = None) -> int:
    """The drafter's token for a position, as the first of `rank`."""
    if request.params.temperature == 0 and logits.is_cpu:  # numpy's argmax is many times as fast there
        likeliest = int(logits.float().numpy().argmax())
        return likeliest if ids is None else int(ids[likeliest])
    return rank(logits, request, position, 1, ids)[0][0]


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
    params = request.params
    values, tokens = logits.float().topk(min(HEAD, len(logits)))
    tokens = tokens if ids is None else ids[tokens]
    if params.temperature > 0:
        at, kept = survivors(scale(values, params.temperature), params)
        if len(at):  # none stays where logits are no numbers: then any guess is as good
            tokens = tokens[at]
            values = gumbel([stream(request.seed, position)], tokens)[0] + kept
    shares, order = values.log_softmax(0).topk(min(n, len(values)))
    return tokens[order].tolist(), shares.tolist()
