"""The default speculator: drafts nothing. Knows how a row's choice decides which drafts stay, for whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence

from byref.contract.requests import Request
from byref.contract.roles import RunForward, Speculator
from byref.contract.step import LogitRows, Outcome, Step, Verdict, Window


class PlainSpeculator(Speculator):
    """Width 0. Its `verify` serves every drafter: a draft stays iff it is the token its parent's row yields.

    The choice at a row is fixed by (seed, position) and its processed distribution, so the tokens are
    those of an engine without drafts, at every temperature.
    """

    def width(self, request: Request) -> Sequence[int]:
        return ()

    def verify(self, rows: LogitRows, chosen: Sequence[int]) -> Outcome:
        choices: dict[str, dict[int, int]] = {}
        windows: dict[str, Window] = {}
        for info, token in zip(rows.infos, chosen, strict=True):
            windows[info.request.id] = info.window
            choices.setdefault(info.request.id, {})[info.row] = token
        return {id: accept(windows[id], choices[id]) for id in windows}

    def propose(self, step: Step, forward: RunForward) -> None:
        return None


def accept(window: Window, chosen: dict[int, int]) -> Verdict:
    """Walk from the newest known row along drafts that equal the choice of the row they continue."""
    at = window.known - 1
    path, tokens = list(range(window.known)), [chosen[at]]
    children: dict[int, list[int]] = {}
    for row in range(window.known, len(window.tokens)):
        children.setdefault(window.parent(row), []).append(row)
    while True:
        stays = [row for row in children.get(at, ()) if window.tokens[row] == tokens[-1]]
        if not stays:
            return Verdict(tuple(path), tuple(tokens))
        at = stays[0]
        path.append(at)
        tokens.append(chosen[at])
