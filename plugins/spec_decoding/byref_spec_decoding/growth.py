"""A draft that grows by one forward after the other, as a chain or a tree. Knows windows and scores; no model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from byref.contract.step import Wanted, Window
from byref_spec_decoding.drafter import Draft, Want
from byref_spec_decoding.rollout import follow, pick, rank
from byref_spec_decoding.state import SpecForwardState


class Head(Protocol):
    """What grows drafts: whose tokens they are, and where its hidden states lie."""

    ids: Tensor | None
    state: SpecForwardState
    branches: int


class Growth(ABC):
    """One request's draft on its way.

    Args:
        want: for whom, and how much.
        root: the window of step 0; its last row continues the newest token.
        head: see `Head`.
    """

    def __init__(self, want: Want, root: Window, head: Head) -> None:
        self.want, self.request, self.most = want, want.request, want.most
        self.root, self.head = root, head

    @abstractmethod
    def window(self) -> Window:
        """Of the next forward."""

    @abstractmethod
    def grow(self, logits: Tensor, draft_step: int) -> bool:
        """Take the logits [wanted rows, vocabulary] of a forward; whether there is another."""

    @abstractmethod
    def draft(self) -> Draft:
        """What has grown."""


class Chain(Growth):
    """Each token continues the one before."""

    def __init__(self, want: Want, root: Window, head: Head) -> None:
        super().__init__(want, root, head)
        self._draft = Draft(())
        self._last = root

    def window(self) -> Window:
        # The row is fed by the head's own row before.
        return replace(follow(self._last, self._draft.tokens[-1]), from_rows=(len(self._last.tokens) - 1,))

    def grow(self, logits: Tensor, draft_step: int) -> bool:
        if draft_step:
            self._last = self.window()
        picked = pick(logits[0], self.want, len(self.request.tokens) + draft_step, self.head.ids)
        self._draft = self._draft.then(*picked)
        return len(self._draft.tokens) < self.most

    def draft(self) -> Draft:
        return self._draft


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    """Index of the node it continues; -1 is the newest token."""
    score: float
    """Logarithm of its chance, its parents' included."""
    row: int = -1
    """In the windows, once it is computed; they only get longer."""


class Tree(Growth):
    """The best continuations of the best nodes, layer by layer (EAGLE-2, Li et al. 2024).

    Every forward computes all nodes again that it computed before: a row sees its ancestors in its own window only,
    and a head of one layer costs little. What an old node is fed stays what it was (see `SpecForwardState`).
    """

    def __init__(self, want: Want, root: Window, head: Head) -> None:
        super().__init__(want, root, head)
        self._nodes: list[_Node] = []
        self._rows: list[int] = []
        """Node of each row of the window."""
        self._newest: list[int] = [-1]
        """Nodes of the newest layer; their rows are the window's last."""

    def window(self) -> Window:
        nodes = [self._nodes[i] for i in self._rows]
        old = len(nodes) - len(self._newest)
        return replace(
            self.root,
            start=self.root.end,
            tokens=tuple(node.token for node in nodes),
            drafts=len(nodes),
            parents=tuple(-1 if node.parent < 0 else self._nodes[node.parent].row for node in nodes),
            wanted=Wanted.ALL,
            prompt=False,
            from_rows=tuple(
                self.head.state.rows + row if row < old else self._fed_by(node) for row, node in enumerate(nodes)
            ),
        )

    def _fed_by(self, node: _Node) -> int:
        """The row of the forward before whose hidden state a new node continues."""
        return len(self.root.tokens) - 1 if node.parent < 0 else self._nodes[node.parent].row

    def grow(self, logits: Tensor, draft_step: int) -> bool:
        coming: list[int] = []
        for row, parent in zip(logits[-len(self._newest) :], self._newest, strict=True):
            before = self._nodes[parent].score if parent >= 0 else 0.0
            position = len(self.request.tokens) + draft_step
            for token, share in zip(*rank(row, self.request, position, self.head.branches, self.head.ids), strict=True):
                coming.append(len(self._nodes))
                self._nodes.append(_Node(token, parent, before + share))
        self._newest = sorted(sorted(coming, key=lambda i: -self._nodes[i].score)[: self.head.branches])
        if len(self._rows) + len(self._newest) > self.most:
            return False
        for i in self._newest:
            self._nodes[i].row = len(self._rows)
            self._rows.append(i)
        return True

    def draft(self) -> Draft:
        """The likeliest nodes. A node is never likelier than its parent, which came before it: none is cut off."""
        best = sorted(range(len(self._nodes)), key=lambda i: (-self._nodes[i].score, i))[: self.most]
        place = {node: at for at, node in enumerate(sorted(best))}
        nodes = [self._nodes[node] for node in place]
        return Draft(tuple(node.token for node in nodes), tuple(place.get(node.parent, -1) for node in nodes))
