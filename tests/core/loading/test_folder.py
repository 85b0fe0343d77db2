"""Hugging Face folders, sharded or not, and what is said of incomplete ones."""

import json

import pytest
import torch
from safetensors.torch import save_file

from byref.contract.errors import ModelError
from byref.loading import open_checkpoint


@pytest.fixture(params=["single", "sharded"])
def folder(request, tmp_path, tiny):
    sizes = {"max_shard_size": "40KB"} if request.param == "sharded" else {}
    tiny.save_pretrained(tmp_path / "model", **sizes)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > (1 if sizes else 0)
    return tmp_path / "model"


@pytest.fixture
def single(tmp_path, tiny):
    tiny.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refuse(path, match):
    with pytest.raises(ModelError, match=match) as error:
        open_checkpoint(str(path))
    assert str(path) in str(error.value)


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tensor(folder, tiny, dtype):
    checkpoint = open_checkpoint(str(folder))
    assert set(checkpoint.names()) == set(tiny.state_dict())
    for name, tensor in tiny.state_dict().items():
        out = torch.full(checkpoint.shape(name), float("nan"), dtype=dtype)
        checkpoint.read(name, out)
        assert torch.equal(out, tensor.to(dtype)), name


def test_configuration(folder, tiny):
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert checkpoint.config.to_dict() == tiny.config.to_dict() | {"_name_or_path": str(folder)}


def test_stored_bfloat16_is_read_as_it_is(tmp_path, single):
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"odd": torch.arange(3).half(), "x": values}, single / "model.safetensors")
    out = torch.empty(5, 3)
    open_checkpoint(str(single)).read("x", out)
    assert torch.equal(out, values.float())


def test_end_ids_come_from_every_file_that_names_some(single):
    change(single / "config.json", eos_token_id=[2, 7])
    change(single / "generation_config.json", eos_token_id=9)
    assert open_checkpoint(str(single)).end_ids == {2, 7, 9}


def test_an_architecture_of_a_stranger_keeps_its_fields(single):
    change(single / "config.json", model_type="strange", architectures=["StrangeForCausalLM"], odd_size=3)
    checkpoint = open_checkpoint(str(single))
    assert checkpoint.architecture == "StrangeForCausalLM"
    assert checkpoint.config.odd_size == 3


def test_no_config(single):
    (single / "config.json").unlink()
    refuse(single, "has no config.json")


def test_a_config_that_is_no_json(single):
    (single / "config.json").write_text("{")
    refuse(single, "config.json is not JSON")


def test_a_config_that_is_not_valid(single):
    change(single / "config.json", num_attention_heads=7)
    with pytest.raises(ModelError, match=r"config\.json is not valid(?s:.*)attention heads"):
        _ = open_checkpoint(str(single)).config


def test_an_index_without_files(single):
    (single / "model.safetensors.index.json").write_text("{}")
    refuse(single, "the index names no file")


def test_no_architecture(single):
    change(single / "config.json", architectures=None)
    with pytest.raises(ModelError, match="names no architecture"):
        _ = open_checkpoint(str(single)).architecture


def test_no_weights(single):
    (single / "model.safetensors").unlink()
    refuse(single, "has no weights: neither model.safetensors nor model.safetensors.index.json")


def test_a_missing_shard_is_named(tmp_path, tiny):
    tiny.save_pretrained(tmp_path, max_shard_size="40KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    refuse(tmp_path, f"the shard {shard.name} is missing")


@pytest.mark.parametrize("keep", [5, 100, -1])
def test_a_truncated_file_is_named(single, keep):
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refuse(single, r"truncated(?s:.*)model\.safetensors")


def test_a_type_that_is_no_weight_is_named(single):
    save_file({"mask": torch.ones(2, dtype=torch.bool), "bytes": torch.ones(2).byte()}, single / "model.safetensors")
    checkpoint = open_checkpoint(str(single))
    with pytest.raises(ModelError, match=r"type BOOL cannot be read as torch\.float32\n.*tensor mask"):
        checkpoint.read("mask", torch.empty(2))
    with pytest.raises(ModelError, match=r"type U8 cannot be read\n.*tensor bytes"):
        checkpoint.read("bytes", torch.empty(2))


def test_a_weight_is_no_table_of_ids(single):
    with pytest.raises(ModelError, match=r"type F32 cannot be read as torch\.int64\n.*tensor model\.norm\.weight"):
        open_checkpoint(str(single)).read("model.norm.weight", torch.empty(64, dtype=torch.int64))


def test_integers_and_truth_values_are_read_as_they_are(single):
    values = {
        "ids": torch.tensor([3, -1, 2**40]),
        "few": torch.tensor([7], dtype=torch.int32),
        "t": torch.tensor([True]),
    }
    save_file(values, single / "model.safetensors")
    checkpoint = open_checkpoint(str(single))
    for name, expected in values.items():
        out = torch.empty(expected.shape, dtype=torch.int64)
        checkpoint.read(name, out)
        assert out.tolist() == expected.tolist()


def test_a_missing_tensor_and_another_shape(single):
    checkpoint = open_checkpoint(str(single))
    with pytest.raises(ModelError, match="no tensor 'nothing'"):
        checkpoint.shape("nothing")
    with pytest.raises(ModelError, match=r"shape \[64\], not \[8, 8\]\n.*tensor model\.norm\.weight"):
        checkpoint.read("model.norm.weight", torch.empty(8, 8))
