"""The Triton kernels against core's attention in plain torch, on the same pages and batches.

Run by test_kernels.py in a process of its own, in Triton's interpreter; on a CUDA machine it runs on the device.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch

import byref_paged_kv.triton_attention as attention
from byref.answers.attention import PoolAttention
from byref.contract import Window
from byref.contract.roles import TARGET, RoleSizing, Sizing
from byref.contract.specs import AttentionSpec, PoolSpec
from byref.testing.desk import Desk
from byref_paged_kv import Options
from byref_paged_kv.kv import PagedKV
from byref_paged_kv.triton_attention import TritonAttention

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2}
PLAIN = AttentionSpec(name="a", heads=4, kv_heads=2, key_dim=16, value_dim=16, scale=0.25)


def spec(**changes):
    return replace(PLAIN, **changes)


SPECS = {
    "grouped": spec(),
    "single": spec(kv_heads=4),
    "one for all": spec(kv_heads=1, heads=8),
    "odd": spec(heads=9, kv_heads=3, key_dim=24, value_dim=24),
    "wide": spec(heads=2, kv_heads=1, key_dim=128, value_dim=128),
    "unequal": spec(key_dim=24, value_dim=16),
    "windowed": spec(window=5),
    "extreme": spec(scale=1e4),
    "capped": spec(softcap=2.0),
    "sinks": spec(sinks="sinks"),
    "latent": spec(form="mla", kv_heads=1, key_dim=40, value_dim=32),
    "all of it": spec(window=7, softcap=3.0, sinks="sinks"),
}


class Both:
    """A model whose only layer is attention, computed twice."""

    vocabulary, input_width = 1, 0

    def __init__(self, kv, spec, sizing):
        pool = kv.pool(TARGET, spec.pool_name)
        sinks = torch.linspace(-1, 2, spec.heads).to(DEVICE) if spec.sinks else None
        self.spec, self.pool = spec, pool
        self.kernels = TritonAttention(spec, pool, pool.placement, sinks)
        self.plain = PoolAttention(spec, pool, frozenset(), sinks)
        self.live = 0

    def __call__(self, ids, positions, hidden, ctx):
        draw = torch.Generator().manual_seed(int(ids.sum()))
        dtype = self.pool.spec.dtype
        q = (torch.randn(ctx.rows, self.spec.heads, self.spec.key_dim, generator=draw) * 2).to(DEVICE, dtype)
        kv = torch.randn(ctx.rows, self.spec.entry_width, generator=draw).to(DEVICE, dtype)
        found = self.kernels(q, kv, ctx)
        written = self.pool.data.clone()
        wanted = self.plain(q, kv, ctx)
        if self.live:
            rows = slice(None, self.live)
            assert torch.equal(written.nan_to_num(7), self.pool.data.nan_to_num(7))
            torch.testing.assert_close(found[rows], wanted[rows], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert found.isfinite().all()
        return torch.zeros(ctx.logit_rows, 1, device=DEVICE)


def desk(spec, page_size, dtype):
    pool = PoolSpec(name=spec.pool_name, width=spec.entry_width, dtype=dtype, window=spec.window)
    sizing = Sizing(
        device=DEVICE,
        dtype=dtype,
        max_requests=4,
        max_rows=64,
        max_context=96,
        max_drafts=5,
        kv_tokens=400,
        captured=frozenset(),
        roles=(RoleSizing(TARGET, 0, 1, 0),),
        pools=(pool,),
    )
    kv = PagedKV(sizing, Options(page_size=page_size, prefix_cache=False))
    for one in kv._pools.values():
        one.data[1:] = float("nan")
    made = Desk(kv, sizing, kv.publish_tables, kv.refill)
    made.model = Both(kv, spec, sizing)
    made._forwards._units[TARGET].model = made.model
    return made


def forward(desk, *windows: Window):
    desk.model.live = sum(len(window.tokens) for window in windows)
    assert desk.forward(*windows)


FULL, HALF = torch.float32, torch.float16  # the interpreter multiplies the bits of bfloat16
CASES = [("grouped", 1, 16, 16, FULL), ("grouped", 16, 512, 64, FULL), ("grouped", 64, 512, 64, HALF)]
CASES += [("all of it", 1, 16, 16, FULL), ("all of it", 16, 32, 16, FULL), ("all of it", 64, 16, 16, HALF)]
CASES += [(name, 4, 16, 16, FULL) for name in SPECS if name not in {"grouped", "all of it"}]


@pytest.mark.parametrize(("name", "page_size", "split", "block", "dtype"), CASES)
def test_kernels_equal_plain_torch(name, page_size, split, block, dtype, monkeypatch):
    """Ragged prompts in chunks, then decoding in step and out of step, chains and trees of drafts, padding."""
    monkeypatch.setattr(attention, "SPLIT_KEYS", split)
    monkeypatch.setattr(attention, "BLOCK_KEYS", block)
    draw, table = random.Random(page_size), desk(SPECS[name], page_size, dtype)
    requests = [table.add([draw.randrange(90) for _ in range(n)], 40) for n in (3, 37, 18)]
    while any(r.computed < len(r.tokens) for r in requests):
        windows = [table.window(r, draw.choice((11, 20))) for r in requests if r.computed < len(r.tokens)]
        forward(table, *windows)
        for window in windows:
            table.keep(window, range(len(window.tokens)))
    for request in requests:
        request.tokens.append(9)
    trees = [((), ()), ((5, 6, 7, 8), (0, 0, 1, 3))]
    for drafts, parents in trees:
        windows = [table.window(r, 0, drafts, parents) for r in requests]
        forward(table, *windows)
        for window in windows:
            table.keep(window, (0, 2) if parents else (0,), 9)
    forward(
        table, table.window(requests[0]), table.window(requests[1], 0, (1, 2)), table.window(requests[2], 0, *trees[1])
    )
    forward(table)  # padding only
