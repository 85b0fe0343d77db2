"""Who answers what the layers ask for, layers that are answered alike in one line. Knows what the binder noted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byref.contract.specs import Spec
    from byref.plugins.binder import Bound

COLUMNS = ("asked for", "role", "layers", "by", "how")


def groups(bound: Sequence[Bound]) -> list[dict[str, str]]:
    """One row for all layers of a role that ask for the same kind of thing and are answered by the same."""
    layers: dict[tuple[str, str, str, str], set[int]] = {}
    for one in bound:
        key = (_asked(one.spec), one.spec.role, one.by, one.about)
        layers.setdefault(key, set()).add(one.spec.layer)
    return [
        dict(zip(COLUMNS, (asked, role, spans(found), by, about), strict=True))
        for (asked, role, by, about), found in layers.items()
    ]


def spans(layers: set[int]) -> str:
    """Numbers as ranges; `-` where it is no layer that asks."""
    runs = groupby(enumerate(sorted(layers - {-1})), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(members) for _, members in runs)]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ends) or "-"


def _asked(spec: Spec[Any]) -> str:
    """Its class, and the window where an attention has one."""
    window = getattr(spec, "window", None)
    return type(spec).__name__ + (f" (window {window})" if window is not None else "")
