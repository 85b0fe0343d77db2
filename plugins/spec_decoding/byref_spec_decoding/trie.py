"""Runs of tokens and how often each was seen. Knows token ids; no request."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field


class Node:
    """A run of tokens: how often it was seen, and what followed."""

    __slots__ = ("count", "next")

    def __init__(self) -> None:
        self.count = 0
        self.next: dict[int, Node] = {}


class Trie:
    """Every run of up to `depth` tokens of the sequences added."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.root = Node()

    def add(self, tokens: Sequence[int]) -> None:
        """Count every run of a sequence."""
        Cursor(self).extend(tokens)

    def remove(self, tokens: Sequence[int]) -> None:
        """Take a sequence that was added back."""
        for start in range(len(tokens)):
            node = self.root
            for token in tokens[start : start + self.depth]:
                child = node.next[token]
                child.count -= 1
                if not child.count:
                    del node.next[token]
                    break
                node = child

    def find(self, run: Sequence[int]) -> Node | None:
        """The node of a run; None where it was never seen."""
        node: Node | None = self.root
        for token in run:
            node = node.next.get(token) if node else None
        return node

    def longest(self, context: Sequence[int], shortest: int) -> tuple[Node | None, int]:
        """The longest end of `context`, of `shortest` tokens or more, that something followed, and its length."""
        for size in range(min(self.depth - 1, len(context)), shortest - 1, -1):
            node = self.find(context[-size:])
            if node and node.next:
                return node, size
        return None, 0


class Cursor:
    """One sequence that grows, and the runs that end at its end."""

    def __init__(self, trie: Trie) -> None:
        self.trie = trie
        self._open: list[Node] = []
        self._seen = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Count the runs that end in tokens not seen yet."""
        for token in tokens[self._seen :]:
            grown = []
            for node in (self.trie.root, *self._open):
                child = node.next.get(token)
                if child is None:
                    child = node.next[token] = Node()
                child.count += 1
                grown.append(child)
            self._open = grown[: self.trie.depth - 1]
        self._seen = len(tokens)


@dataclass(slots=True)
class Guess:
    """Tokens that may follow, as a chain or a tree."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """For each the one it continues; -1 continues the context."""
    matched: int = 0
    """Tokens of the context that stood there before."""
    expected: float = 0.0
    """Tokens of it that come, if the counts are right."""


def guess(trie: Trie, context: Sequence[int], most: int, *, shortest: int, likely: float, tree: bool) -> Guess:
    """The likeliest continuations first, each with its chance: a chain follows the likeliest one only."""
    node, matched = trie.longest(context, shortest)
    found = Guess(matched=matched)
    if node is None:
        return found
    paths: list[list[int]] = []
    open_ends = [(-chance, -1, token, child) for token, child, chance in _following(node, 1.0, tree=tree)]
    while open_ends and len(found.tokens) < most:
        # Ties in chance and parent are settled by token id, which no two of them share.
        negated, parent, token, child = heapq.heappop(open_ends)
        if -negated < likely:
            break
        at, path = len(found.tokens), [*(paths[parent] if parent >= 0 else ()), token]
        found.tokens.append(token)
        found.parents.append(parent)
        found.expected -= negated
        paths.append(path)
        onward = child if child.next else trie.longest([*context, *path], shortest)[0]
        for coming, grandchild, chance in _following(onward, -negated, tree=tree) if onward else ():
            heapq.heappush(open_ends, (-chance, at, coming, grandchild))
    return found


def _following(node: Node, chance: float, *, tree: bool) -> list[tuple[int, Node, float]]:
    """What followed a run, each with its chance: of a chain the likeliest only, the smallest id of equals."""
    total = sum(child.count for child in node.next.values())
    found = [(token, child, chance * child.count / total) for token, child in node.next.items()]
    return found if tree else [max(found, key=lambda one: (one[2], -one[0]))]
