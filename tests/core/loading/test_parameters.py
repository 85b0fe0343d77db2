"""Parameters are stacked into one tensor, read once, and accounted for."""

import pytest
import torch

from byref.contract.errors import ModelError
from byref.loading import ParameterReader, open_checkpoint

Q, K, V = (f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv")


@pytest.fixture(params=["gguf", "folder"])
def checkpoint(request, tmp_path, tiny, gguf_of):
    if request.param == "gguf":
        return open_checkpoint(str(gguf_of()))
    tiny.save_pretrained(tmp_path / "model")
    return open_checkpoint(str(tmp_path / "model"))


def test_parts_are_stacked_in_order(checkpoint, tiny):
    found = ParameterReader(checkpoint, torch.bfloat16).load([Q, K, V], (128, 64))
    expected = torch.cat([tiny.state_dict()[name] for name in (Q, K, V)]).bfloat16()
    assert torch.equal(found, expected)
    assert found.is_contiguous()


def test_a_part_may_be_read_twice(checkpoint, tiny):
    reader = ParameterReader(checkpoint, torch.float32)
    expected = torch.cat([tiny.state_dict()[K]] * 2)
    assert torch.equal(reader.load([K, K], (64, 64)), expected)
    assert torch.equal(reader.load([K], (32, 64)), expected[:32])


def test_what_nobody_read_is_known(checkpoint, tiny):
    reader = ParameterReader(checkpoint, torch.float32)
    names = sorted(tiny.state_dict())
    assert list(reader.unclaimed()) == names
    for name in names[1:]:
        reader.load([name], tiny.state_dict()[name].shape)
    assert reader.unclaimed() == (names[0],)
    assert reader.has(names[0])
    assert not reader.has("nothing")


def test_a_missing_tensor_names_file_and_neighbours(checkpoint):
    with pytest.raises(ModelError) as error:
        ParameterReader(checkpoint, torch.float32).load([Q, "model.layers.0.self_attn.k_prj.weight"], (96, 64))
    assert "no tensor 'model.layers.0.self_attn.k_prj.weight'" in error.value.what
    assert error.value.where == str(checkpoint.path)
    assert K in error.value.hint


@pytest.mark.parametrize("shape", [(127, 64), (128, 63), (64, 128), (128,), (128, 64, 1), ()])
def test_shapes_that_do_not_add_up(checkpoint, shape):
    with pytest.raises(ModelError) as error:
        ParameterReader(checkpoint, torch.float32).load([Q, K, V], shape)
    assert f"the model wants {list(shape)}" in error.value.what
    assert f"{K} [32, 64]" in error.value.what
    assert error.value.where == str(checkpoint.file(K))


def test_a_failed_load_claims_nothing(checkpoint):
    reader = ParameterReader(checkpoint, torch.float32)
    before = reader.unclaimed()
    with pytest.raises(ModelError):
        reader.load([Q, K], (1, 64))
    assert reader.unclaimed() == before
