"""Packed projections compute what plain ones do, fused parts side by side, with bias and residual."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from byref.answers.linear import BLOCK, BlockedLinear, PackedLinear, PlainLinear, answer_linear, packs
from byref.contract.specs import LinearSpec, Part

KEPT = """
import ctypes, torch
from byref.answers.linear import PackedLinear

class Used(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks used free cost".split()]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Used
torch.set_num_threads(1)
linear = PackedLinear(torch.randn(320, 192), None)
found = []
with torch.inference_mode():
    for rows in range(1, 901):
        linear(torch.zeros(rows, 192))
        if rows in (300, 600, 900):
            found.append(mallinfo().used)
print(*found)
"""
CPU = torch.device("cpu")
SHAPES = [(16, 16), (7, 33), (40, BLOCK), (24, BLOCK + 1), (8, 3 * BLOCK + 5)]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
@pytest.mark.skipif(not packs(CPU, torch.float32), reason="nothing is packed here")
def test_ever_new_numbers_of_rows_need_no_ever_more_memory():
    environment = {name: value for name, value in os.environ.items() if "CACHE_CAPACITY" not in name}
    told = subprocess.run([sys.executable, "-c", KEPT], env=environment, capture_output=True, text=True, check=True)
    full, later, last = map(int, told.stdout.split())
    assert last - full < 4 << 20, f"the kernels of 600 more shapes are kept: {full} bytes, then {later}, then {last}"


class Named:
    """Parameters that remember what was asked of them."""

    def __init__(self, tensors):
        self.tensors = tensors

    def has(self, name):
        return name in self.tensors

    def load(self, names, shape):
        stacked = torch.cat([self.tensors[name] for name in names])
        assert tuple(stacked.shape) == tuple(shape)
        return stacked


def case(outputs, inputs, dtype, bias):
    torch.manual_seed(inputs)
    split = outputs // 3
    tensors = {
        "q.weight": torch.randn(split, inputs, dtype=dtype) / inputs**0.5,
        "k.weight": torch.randn(outputs - split, inputs, dtype=dtype) / inputs**0.5,
        "q.bias": torch.randn(split, dtype=dtype),
        "k.bias": torch.randn(outputs - split, dtype=dtype),
    }
    parts = (Part("q.weight", split), Part("k.weight", outputs - split))
    spec = LinearSpec(name="qk", fused=parts, inputs=inputs, bias=bias)
    site = SimpleNamespace(sizing=SimpleNamespace(device=CPU), parameters=Named(tensors))
    weight, added = (
        torch.cat([tensors["q.weight"], tensors["k.weight"]]),
        torch.cat([tensors["q.bias"], tensors["k.bias"]]),
    )
    return answer_linear(spec, site), weight.double(), added.double() if bias else None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 65])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_it_equals_a_plain_projection(outputs, inputs, rows, bias):
    linear, weight, added = case(outputs, inputs, torch.float32, bias)
    x, residual = torch.randn(rows, inputs), torch.randn(rows, outputs)
    kept, before = x.clone(), residual.clone()
    right = functional.linear(x.double(), weight, added)
    torch.testing.assert_close(linear(x).double(), right, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(linear(x, residual).double(), right + before.double(), atol=1e-5, rtol=1e-5)
    assert torch.equal(x, kept)
    assert torch.equal(residual, before)


@pytest.mark.skipif(not packs(CPU, torch.bfloat16), reason="this CPU does not multiply in bfloat16")
def test_in_bfloat16_the_residual_is_added_before_rounding():
    linear, weight, added = case(48, 96, torch.bfloat16, bias=True)
    assert isinstance(linear, PackedLinear)
    x, residual = torch.randn(5, 96).bfloat16(), torch.randn(5, 48).bfloat16()
    right = functional.linear(x.double(), weight, added) + residual.double()
    off = (linear(x, residual).double() - right).abs()
    assert bool((off <= right.abs() * 2**-8 + 1e-3).all())


def test_kinds_of_linear():
    assert isinstance(
        case(6, BLOCK, torch.float32, bias=False)[0], PackedLinear if packs(CPU, torch.float32) else PlainLinear
    )
    assert isinstance(
        case(6, BLOCK + 1, torch.float32, bias=False)[0], BlockedLinear if packs(CPU, torch.float32) else PlainLinear
    )
    assert isinstance(case(6, 16, torch.float16, bias=False)[0], PlainLinear)


@pytest.mark.skipif(not packs(CPU, torch.float32), reason="nothing is packed here")
def test_blocks_lose_fewer_digits_of_a_long_sum():
    torch.manual_seed(0)
    weight, x = torch.randn(256, 3 * BLOCK) / (3 * BLOCK) ** 0.5, torch.randn(16, 3 * BLOCK)
    right = functional.linear(x.double(), weight.double())
    blocked, whole = ((kind(weight, None)(x).double() - right).pow(2).mean() for kind in (BlockedLinear, PackedLinear))
    assert blocked < whole
