"""One model as a GGUF file of each common type, made by llama.cpp's own quantiser: how far each is from the weights.

Rounding to steps of size s leaves an error whose root mean square is s / sqrt(12). Each type takes its step from the
values of a block, so the error to be expected can be computed for every weight.
"""

from __future__ import annotations

import random

import gguf
import llamacpp
import numpy as np
import pytest
import torch
from checkpoints import VOCABULARY
from engines import one_per_step, start
from equality import TransformersOracle, assert_equal
from families import FAMILIES, random_model
from gguf import GGMLQuantizationType as Type
from gguf_files import write_family

from byref.loading import open_checkpoint


def absolute(block: int, steps: int):
    """The step of a type that divides a block's largest value into so many steps."""
    return lambda w: np.abs(w.reshape(-1, block)).max(1) / steps


def ranged(block: int, steps: int):
    """The step of a type that divides a block's range, zero included, into so many steps."""
    return lambda w: np.ptp(np.pad(w.reshape(-1, block), ((0, 0), (0, 1))), 1) / steps


STEPS = {
    Type.F32: None,
    Type.Q8_0: absolute(32, 127),
    Type.Q4_0: absolute(32, 8),
    Type.Q4_1: ranged(32, 15),
    Type.Q4_K: ranged(32, 15),
    Type.Q6_K: absolute(16, 32),
}
LESS, MORE = 0.85, 1.05
"""Of the expected error. Q4_K and Q6_K look for a scale that is better than the plain one, and store scales in few bits."""
WIDE = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.1}
"""Q4_K and Q6_K have blocks of 256 values. Weights as wide as the smaller models' would make logits of hundreds."""


@pytest.fixture(scope="module")
def model():
    return random_model(FAMILIES["Llama"], **WIDE)


@pytest.fixture(params=STEPS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture
def path(tmp_path, model, kind):
    return write_family(tmp_path / f"{kind.name}.gguf", "Llama", model, kind)


def read(checkpoint, name: str) -> torch.Tensor:
    out = torch.empty(checkpoint.shape(name))
    checkpoint.read(name, out)
    return out


def test_the_model_has_heads_to_order(model):
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (4, 2)


def test_it_computes_with_the_dequantised_weights_of_the_library(path, model, kind):
    """Rows are quantised one by one, so the order in which a file has those of queries and keys changes no value."""
    stored = {
        name: tensor
        if tensor.dim() == 1 or kind is Type.F32
        else torch.from_numpy(gguf.dequantize(llamacpp.quantize(tensor.numpy(), kind), kind))
        for name, tensor in model.state_dict().items()
    }
    checkpoint = open_checkpoint(str(path))
    for name in checkpoint.names():
        assert torch.equal(read(checkpoint, name), stored[name]), name
    dequantised = random_model(FAMILIES["Llama"], **WIDE)
    dequantised.load_state_dict(stored)
    draw = random.Random(0)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(n)] for n in (1, 17, 40)]
    with start(path, chunk=16) as engine:
        assert_equal(engine, TransformersOracle(dequantised), prompts, 8, one_per_step)


def test_its_weights_are_as_far_off_as_the_type_lets_expect(path, model, kind):
    checkpoint = open_checkpoint(str(path))
    for name, tensor in model.state_dict().items():
        if name not in checkpoint.names():
            continue
        error = (read(checkpoint, name) - tensor).numpy()
        if tensor.dim() == 1 or kind is Type.F32:
            assert not error.any()
            continue
        expected = np.sqrt((STEPS[kind](tensor.numpy()) ** 2 / 12).mean())
        assert LESS < np.sqrt((error**2).mean()) / expected < MORE, name
