"""Rounded weights: near the projection, for every shape that a model may have, in any dtype of its rows."""

from __future__ import annotations

import pytest
import torch

from byref.contract.errors import ConfigError
from byref_spec_decoding.lowbit import FEW, GROUP, Int4Weight, Int8Weight, RoundedLinear


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("inputs", [8, 16, 20, 24, 33, 40, 64, 100, 576])
@pytest.mark.parametrize("rows", [1, 3, FEW])
def test_eight_bits_are_near_for_every_number_of_inputs(inputs, rows):
    """torch's kernel crashed or gave infinities where 16 does not divide it."""
    torch.manual_seed(inputs)
    weight, x = torch.randn(48, inputs), torch.randn(rows, inputs)
    assert far(Int8Weight(weight)(x.bfloat16()), x @ weight.t()) < 0.02


@pytest.mark.parametrize("outputs", [16, 24, 100])
def test_four_bits_are_near_for_every_number_of_outputs(outputs):
    torch.manual_seed(outputs)
    weight, x = torch.randn(outputs, 4 * GROUP), torch.randn(3, 4 * GROUP)
    assert far(Int4Weight(weight)(x.bfloat16()), x @ weight.t()) < 0.15


def test_four_bits_refuse_inputs_that_make_no_groups():
    with pytest.raises(ConfigError, match=f"that {GROUP} divides, and a projection has 40"):
        Int4Weight(torch.randn(16, 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_are_rounded_and_many_are_the_targets(dtype):
    """Biases and residuals included; the result has the dtype of the rows."""
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 64), torch.randn(48)
    own = lambda x, residual=None: torch.full((len(x), 48), 7.0, dtype=x.dtype)  # noqa: E731
    linear = RoundedLinear(Int8Weight(weight), bias.to(dtype), own)
    x = torch.randn(FEW, 64)
    expected = x @ weight.t() + bias + 1.0
    found = linear(x.to(dtype), torch.ones(FEW, 48, dtype=dtype))
    assert found.dtype is dtype
    assert far(found, expected) < 0.02
    assert bool((linear(torch.randn(FEW + 1, 64, dtype=dtype)) == 7.0).all())
