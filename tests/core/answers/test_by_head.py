"""The fast forms of decode on a CPU compute what the plain ones do."""

import pytest
import torch
from torch.nn import functional

from byref.answers.fine import _norm, _norm_cpu
from byref.answers.scores import attend_entries, attend_heads, fold_mask
from byref.contract.specs import AttentionSpec

REQUESTS, KEYS, KV_HEADS, GROUPED, DIM = 3, 11, 2, 3, 8
SPEC = AttentionSpec(name="a", heads=KV_HEADS * GROUPED, kv_heads=KV_HEADS, key_dim=DIM, value_dim=DIM, scale=0.3)


def case(width):
    """q, entries, and a mask that hides another tail of each row's keys and some key in the middle."""
    torch.manual_seed(width)
    q = torch.randn(REQUESTS, width, SPEC.heads, DIM)
    entries = torch.randn(REQUESTS, KEYS, SPEC.entry_width)
    mask = torch.zeros(REQUESTS, width, KEYS)
    for request in range(REQUESTS):
        for row in range(width):
            mask[request, row, KEYS - 2 * request - row % 3 - 1 :] = float("-inf")
            mask[request, row, 1 + row % 2] = float("-inf")
    return q, entries, mask


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_heads_lying_apart_give_the_same(width):
    q, entries, mask = case(width)
    expected = attend_entries(SPEC, q, entries, fold_mask(mask, GROUPED), None)
    slots = torch.arange(REQUESTS * KEYS).view(REQUESTS, KEYS)
    index = (slots * 2 * KV_HEADS + torch.arange(2 * KV_HEADS).view(-1, 1, 1)).view(2, -1).unbind()
    folded = fold_mask(mask, GROUPED).squeeze(1).repeat(KV_HEADS, 1, 1)
    found = attend_heads(SPEC, q, entries.view(-1, DIM), index, folded)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 8, 9])
def test_entries_give_what_a_softmax_written_out_gives(width):
    q, entries, mask = case(width)
    k, v = entries.view(REQUESTS, KEYS, 2, KV_HEADS, DIM).permute(2, 0, 3, 1, 4)
    k, v = k.repeat_interleave(GROUPED, 1), v.repeat_interleave(GROUPED, 1)
    scores = q.transpose(1, 2) @ k.transpose(-1, -2) * SPEC.scale + mask[:, None]
    expected = (scores.softmax(-1) @ v).transpose(1, 2).reshape(REQUESTS * width, -1)
    found = attend_entries(SPEC, q, entries, fold_mask(mask, GROUPED), None)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])
def test_the_norm_of_a_cpu_is_rms_norm(dtype, tolerance, size):
    torch.manual_seed(0)
    x, weight = (torch.randn(5, 24) * size).to(dtype), torch.randn(24).to(dtype)
    kept = x.clone()
    found = _norm_cpu(weight, 1e-5)(x)
    assert found.dtype is dtype
    assert torch.equal(x, kept)
    torch.testing.assert_close(found, _norm(weight, 1e-5)(x), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found, functional.rms_norm(x, (24,), weight, 1e-5), atol=tolerance, rtol=tolerance)
