"""The Triton kernels against plain torch, on the same entries.

Run by test_kernels.py in a process of its own, in Triton's interpreter; on a CUDA machine it runs on the device.
"""

from __future__ import annotations

import os

import pytest
import torch

import byref_dsa.triton_paths as paths
from byref.answers.scores import attend_entries
from byref.contract.specs import AttentionSpec
from byref_dsa.scoring import best, index_scores

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


def made(*shape, seed=0, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(DEVICE)


@pytest.mark.parametrize(
    ("requests", "width", "heads", "dim", "keys"),
    [(1, 1, 16, 16, 40), (2, 3, 48, 16, 70), (3, 1, 64, 128, 129), (1, 11, 5, 24, 64), (2, 9, 80, 32, 1)],
)
def test_scores_equal_plain_torch(requests, width, heads, dim, keys):
    q, data = made(requests, width, heads, dim), made(200, dim, seed=1)
    weights = made(requests, width, heads, seed=2)
    slots = torch.randint(200, (requests, keys), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    found, expected = paths.score(q, data, slots, weights), index_scores(q, data[slots], weights)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    k = min(4, keys)
    seen = torch.ones_like(found, dtype=torch.bool)
    assert torch.equal(best(found, seen, k), best(expected, seen, k))


CASES = {
    "latent": (3, 16, 40, 32, 9, False),
    "latent, many heads": (2, 33, 40, 32, 5, False),
    "key is value, sinks": (4, 8, 24, 24, 12, True),
    "split": (2, 4, 40, 32, 70, True),
    "many rows": (70, 4, 24, 16, 3, False),
    "wide": (1, 16, 576, 512, 40, False),
}


@pytest.mark.parametrize(("rows", "heads", "key_dim", "value_dim", "count", "with_sinks"), CASES.values(), ids=CASES)
def test_attention_equals_plain_torch(monkeypatch, rows, heads, key_dim, value_dim, count, with_sinks):
    monkeypatch.setattr(paths, "SPLIT_ENTRIES", 32)
    spec = AttentionSpec(name="a", heads=heads, kv_heads=1, key_dim=key_dim, value_dim=value_dim, scale=0.2, form="mla")
    q, data = made(rows, heads, key_dim, scale=2.0), made(150, key_dim, seed=1)
    draw = torch.Generator().manual_seed(4)
    slots = torch.randint(150, (rows, count), generator=draw).to(DEVICE)
    seen = (torch.rand(rows, count, generator=draw) < 0.7).to(DEVICE)
    seen[:, 0] = True
    data[slots[~seen]] = float("nan")
    data[slots[seen]] = made(int(seen.sum()), key_dim, seed=5)
    sinks = torch.linspace(-1, 2, heads).to(DEVICE) if with_sinks else None
    found = paths.merge([paths.attend(q, data, slots, seen, spec.scale, value_dim)], sinks)
    entries = data[slots].nan_to_num(0.0)
    mask = torch.zeros(seen.shape, device=DEVICE).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = attend_entries(spec, q.unsqueeze(1), entries, mask[:, None, None], sinks)
    torch.testing.assert_close(found.flatten(1), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_two_pools_are_one_softmax_and_what_sees_nothing_is_zero(with_sinks):
    spec = AttentionSpec(name="a", heads=8, kv_heads=1, key_dim=24, value_dim=24, scale=0.2, form="mla")
    q, near, far = made(3, 8, 24), made(50, 24, seed=1), made(60, 24, seed=2)
    sinks = torch.linspace(-1, 2, 8).to(DEVICE) if with_sinks else None
    draw = torch.Generator().manual_seed(6)
    parts = []
    for data, count in ((near, 8), (far, 5)):
        slots = torch.randint(len(data), (3, count), generator=draw).to(DEVICE)
        seen = (torch.rand(3, count, generator=draw) < 0.6).to(DEVICE)
        seen[2] = False
        parts.append((data, slots, seen))
    found = paths.merge([paths.attend(q, *part, spec.scale, 24) for part in parts], sinks)
    entries = torch.cat([data[slots] for data, slots, _ in parts], 1)
    seen = torch.cat([seen for _, _, seen in parts], 1)
    mask = torch.zeros(seen.shape, device=DEVICE).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = attend_entries(spec, q.unsqueeze(1), entries, mask[:, None, None], sinks)
    torch.testing.assert_close(found.flatten(1)[:2], expected[:2], atol=2e-5, rtol=2e-5)
    assert not found[2].any()
