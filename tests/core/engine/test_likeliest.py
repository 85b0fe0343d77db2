"""The greedy choice: the largest logit, the first of equals, on any dtype."""

import pytest
import torch

from byref.engine.processing import _likeliest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_is_the_first_of_the_largest(dtype):
    rows = torch.tensor([[0.0, 2.0, 2.0, 1.0], [-3.0, -1.0, -2.0, -1.0], [5.0, 0.0, 0.0, 5.0]]).to(dtype)
    assert _likeliest(rows) == [1, 1, 0]


def test_it_is_torchs_own_without_ties():
    torch.manual_seed(0)
    rows = torch.randn(7, 1000)
    assert _likeliest(rows) == rows.argmax(-1).tolist()


def test_rows_may_be_a_slice():
    rows = torch.arange(12.0).view(2, 6)
    assert _likeliest(rows[:, :4]) == [3, 3]
