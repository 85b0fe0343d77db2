"""How windows become rows: kinds, padding, buckets. Knows counts only; all of `ctx.key` but the role is made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from byref.contract.context import Kind
from byref.contract.step import Window


@dataclass(frozen=True, slots=True)
class Layout:
    """Padded counts of one forward; see `ForwardContext` for the fields."""

    kind: Kind
    rows: int
    requests: int
    rows_per_request: int
    logit_rows: int
    context_bound: int

    def place(self, windows: Sequence[Window]) -> dict[str, int]:
        """The first row of each window's request."""
        placed, row = {}, 0
        for window in windows:
            placed[window.request] = row
            row += self.rows_per_request or len(window.tokens)
        return placed


def kind_of(windows: Sequence[Window]) -> Kind:
    """What the windows are together."""
    prompts = {window.prompt for window in windows}
    if not prompts:
        return Kind.IDLE
    if len(prompts) == 2:
        return Kind.MIXED
    return Kind.PREFILL if prompts == {True} else Kind.DECODE


def bucket(n: int, step: int = 1) -> int:
    """The next of step, 2 step, ..., with at most a quarter of waste above 4 steps."""
    unit = max(step, 1 << max(n.bit_length() - 3, 0))
    return max(-(-n // unit) * unit, step)


def lay_out(windows: Sequence[Window], captured: frozenset[Kind], most_context: int) -> Layout:
    """The layout of a forward. Kinds that are captured are padded to buckets, so that few graphs serve all."""
    kind = kind_of(windows)
    if kind is Kind.IDLE:
        return Layout(kind, 1, 1, 1, 1, 1)
    widths = [len(window.tokens) for window in windows]
    wanted = sum(len(window.wanted_rows()) for window in windows)
    bound = min(bucket(max(window.end for window in windows), 64), most_context)
    if kind not in captured:
        uniform = widths[0] if len(set(widths)) == 1 else 0
        return Layout(kind, sum(widths), len(windows), uniform, max(wanted, 1), bound)
    if kind is Kind.DECODE:
        width, requests = max(widths), bucket(len(windows))
        return Layout(kind, requests * width, requests, width, requests * width, bound)
    # One request of padding at least, so that padding rows have one to belong to.
    return Layout(kind, bucket(sum(widths), 8), bucket(len(windows) + 1), 0, bucket(max(wanted, 1)), bound)


def most_rows(max_rows: int, max_requests: int, max_drafts: int) -> int:
    """Rows that buffers are sized for: the widest layout of any kind."""
    return max(bucket(max_rows, 8), bucket(max_requests) * (max_drafts + 1))
