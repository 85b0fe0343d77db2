"""Attention equals a plain loop over the entries that each row may see, in every form, for rows of every kind."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from windows import Rows, request, sizing_of

from byref.answers.attention import answer_attention
from byref.contract import Window
from byref.contract.roles import TARGET
from byref.contract.specs import AttentionSpec, PoolSpec

PLAIN = {"heads": 4, "kv_heads": 2, "key_dim": 8, "value_dim": 8, "scale": 0.3}
MLA = {"form": "mla", "heads": 4, "kv_heads": 1, "key_dim": 12, "value_dim": 8}
FORMS = {
    "two heads share": {},
    "each its own": {"kv_heads": 4},
    "all share one": {"kv_heads": 1},
    "three share": {"heads": 6},
    "wide values": {"value_dim": 12},
    "mla": MLA,
    "window of one": {"window": 1},
    "window of three": {"window": 3},
    "window of seven": {"window": 7, "kv_heads": 1},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": "sinks"},
    "sinks, one head": {"sinks": "sinks", "kv_heads": 1},
    "window, softcap and sinks": {"window": 4, "softcap": 1.5, "sinks": "sinks"},
    "mla, window": MLA | {"window": 5},
    "mla, softcap and sinks": MLA | {"softcap": 1.5, "sinks": "sinks"},
}
TREE = (0, 0, 1, 3)
"""Rows that four drafts continue: two siblings, a child of the first, a child of that."""
STEPS = [
    [("a", 20, (), 20), ("b", 1, (), 1), ("c", 9, (), 9)],  # prompts of different lengths
    [("a", 1, (), 1), ("b", 1, (), 1), ("c", 1, (), 1)],
    [("c", 5, (), 5), ("a", 5, (), 3), ("b", 5, (), 1)],  # chains of four drafts, of which some stay
    [("b", 5, TREE, (0, 1, 3, 4)), ("a", 5, TREE, (0, 2))],
    [("b", 5, TREE, (0,)), ("c", 7, (), 7), ("a", 1, (), 1), ("d", 20, (), 20)],  # a tree beside prompts
    [("b", 3, (0, 0), (0, 2)), ("c", 4, (0, 1, 1), (0, 1, 3)), ("a", 1, (), 1), ("d", 1, (), 1)],  # ragged drafts
    [("d", 1, (), 1)],
    [("d", 5, TREE, (0, 1, 3))],
    [("c", 12, (), 12), ("b", 12, (), 12)],
]
"""Forwards: each request's rows, what its drafts continue, and which rows are kept (a number: the first so many)."""


def attend_plainly(spec, sinks, q, visible):
    """One row: q [heads, key_dim], visible [(entry)] -> [heads * value_dim], in double precision."""
    out = []
    for head in range(spec.heads):
        group = 0 if spec.form == "mla" else head * spec.kv_heads // spec.heads
        scores, values = [], []
        for entry in visible:
            if spec.form == "mla":
                key, value = entry, entry[: spec.value_dim]
            else:
                key = entry[group * spec.key_dim :][: spec.key_dim]
                value = entry[spec.kv_heads * spec.key_dim + group * spec.value_dim :][: spec.value_dim]
            score = float(q[head].double() @ key.double()) * spec.scale
            scores.append(spec.softcap * math.tanh(score / spec.softcap) if spec.softcap else score)
            values.append(value.double())
        weights = [math.exp(score) for score in scores]
        total = sum(weights) + (math.exp(float(sinks[head])) if spec.sinks else 0.0)
        out.append(sum(w * v for w, v in zip(weights, values, strict=True)) / total)
    return torch.cat(out)


def expected(spec, sinks, window, entries, q, own):
    """Every row of a window: it sees what is kept, its own lineage, and of both what its window reaches."""
    rows = []
    for row in range(len(window.tokens)):
        lineage = window.lineage(row)
        sight = [*entries, *(own[i] for i in lineage)]
        rows.append(attend_plainly(spec, sinks, q[row], sight[-spec.window :] if spec.window else sight))
    return torch.stack(rows)


@pytest.mark.parametrize("padded", [False, True], ids=["eager", "padded"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_it_equals_a_plain_loop(form, padded):
    torch.manual_seed(0)
    spec = AttentionSpec(name="attn", **(PLAIN | form))
    pool = PoolSpec(name=spec.pool_name, width=spec.entry_width, dtype=torch.float32, window=spec.window)
    rows = Rows(sizing_of([pool], padded=padded))
    rows.kv.pool(TARGET, pool.name).data[1:] = float("nan")
    sinks = torch.randn(spec.heads)
    site = SimpleNamespace(kv=rows.kv, sizing=rows.sizing, parameters=SimpleNamespace(load=lambda *_: sinks))
    attend = answer_attention(spec, site)
    requests = {name: request(name, i + 1, 20, 40) for i, name in enumerate("abcd")}
    entries = {name: [] for name in requests}
    for one in requests.values():
        assert rows.kv.reserve(one, 1)
    for forward in STEPS:
        windows = [window(requests[name], n, parents, keep) for name, n, parents, keep in forward]

        def body(ctx, windows=windows):
            q, kv = torch.randn(ctx.rows, spec.heads, spec.key_dim), torch.randn(ctx.rows, spec.entry_width)
            return q, kv, attend(q.clone(), kv.clone(), ctx), ctx.rows_per_request

        q, kv, found, width = rows.run(windows, body)
        at = 0
        for one, (name, n, _, keep) in zip(windows, forward, strict=True):
            mine = slice(at, at + n)
            right = expected(spec, sinks, one, entries[name], q[mine], kv[mine])
            torch.testing.assert_close(found[mine].double(), right, atol=2e-6, rtol=1e-5)
            path = range(keep) if isinstance(keep, int) else keep
            rows.kv.commit(requests[name], tuple(path))
            entries[name] += [kv[at + row] for row in path]
            requests[name].lengths[TARGET] += len(path)
            at += width or n


def window(one, n, parents, keep):
    """`n` rows; those that need not be kept are drafts."""
    drafts = len(parents) or (n - 1 if keep != n else 0)
    chain = tuple(range(n - 1)) if drafts and not parents else parents
    return Window(one.id, one.row, TARGET, one.computed, (1,) * n, drafts, chain, prompt=not drafts and n > 1)
