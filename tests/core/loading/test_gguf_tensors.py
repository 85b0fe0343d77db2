"""Tensors of GGUF files are those of the model they were made of."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoConfig, AutoModelForCausalLM

from byref.contract.errors import ModelError
from byref.loading import mapped, open_checkpoint

torch.set_num_threads(1)


def read(checkpoint, name, dtype=torch.float32):
    out = torch.full(checkpoint.shape(name), float("nan"), dtype=dtype)
    checkpoint.read(name, out)
    return out


def dequantisable():
    for kind in Type:
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            continue
        yield kind


@pytest.fixture(params=[7, 1 << 19], ids=["small chunks", "one chunk"])
def chunk(request, monkeypatch):
    monkeypatch.setattr(mapped, "CHUNK", request.param)


def test_every_tensor_and_its_row_order(tiny, gguf_of, chunk):
    checkpoint = open_checkpoint(str(gguf_of()))
    expected = tiny.state_dict()
    assert set(checkpoint.names()) == set(expected)
    assert "model.layers.1.self_attn.k_proj.bias" in expected
    for name, tensor in expected.items():
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert torch.equal(read(checkpoint, name), tensor), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_tensor_is_cast_once(tiny, gguf_of, dtype):
    checkpoint = open_checkpoint(str(gguf_of()))
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.norm.weight"):
        assert torch.equal(read(checkpoint, name, dtype), tiny.state_dict()[name].to(dtype))


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_1], ids=lambda kind: kind.name)
def test_quantised_rows_keep_their_order(tiny, gguf_of, kind, chunk):
    checkpoint = open_checkpoint(str(gguf_of(kind)))
    for name, tensor in tiny.state_dict().items():
        expected = tensor.numpy()
        if tensor.ndim > 1 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            expected = gguf.dequantize(gguf.quantize(expected, kind), kind)
        np.testing.assert_array_equal(read(checkpoint, name).numpy(), expected.reshape(tensor.shape), err_msg=name)


@pytest.mark.parametrize("kind", list(dequantisable()), ids=lambda kind: kind.name)
def test_every_type_the_library_can_dequantise(tmp_path, tools, tiny, kind, chunk):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 120, (6, 2 * size * (32 // min(block, 32))), dtype=np.uint8)
    path = tools.write_gguf(
        tmp_path / "one.gguf", tools.metadata_of(tiny.config) | {"block_count": 1}, {"token_embd.weight": (raw, kind)}
    )
    with np.errstate(all="ignore"):
        found = read(open_checkpoint(str(path)), "model.embed_tokens.weight").numpy()
        np.testing.assert_array_equal(found, gguf.dequantize(raw, kind))


@pytest.mark.parametrize("architecture", ["llama", "phi3", "qwen2", "qwen3"])
def test_names_are_those_of_transformers(tmp_path, tools, architecture):
    sizes = tools.tiny_config().to_dict()
    sizes.pop("model_type")
    config = AutoConfig.for_model(architecture, **sizes)
    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(config).state_dict()
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], 2)
    tensors = {}
    for name, tensor in expected.items():
        stem, suffix = name.rsplit(".", 1)
        tensors[f"{table.get_name(stem)}.{suffix}"] = np.zeros(tensor.shape, np.float32)
    path = tools.write_gguf(tmp_path / "named.gguf", {"block_count": 2}, tensors, architecture)
    assert set(open_checkpoint(str(path)).names()) == set(expected)


def test_a_tensor_nobody_expects_keeps_its_name(gguf_of):
    path = gguf_of(more={"blk.0.surprise.weight": np.zeros(4, np.float32)})
    assert "blk.0.surprise.weight" in open_checkpoint(str(path)).names()


def test_a_missing_tensor_is_named(gguf_of):
    with pytest.raises(ModelError, match=r"no tensor 'model.nowhere.weight'(?s:.*)tiny\.gguf"):
        open_checkpoint(str(gguf_of())).shape("model.nowhere.weight")


def test_another_shape_is_refused(gguf_of):
    with pytest.raises(ModelError, match=r"shape \[64\], not \[65\]\n  in: .*tiny\.gguf, tensor model\.norm\.weight"):
        open_checkpoint(str(gguf_of())).read("model.norm.weight", torch.empty(65))


def test_heads_that_do_not_divide_the_rows(gguf_of):
    checkpoint = open_checkpoint(str(gguf_of(changes={"attention.head_count": 5})))
    with pytest.raises(ModelError, match="64 rows cannot belong to the 5 heads"):
        read(checkpoint, "model.layers.0.self_attn.q_proj.weight")


@pytest.mark.model
def test_smollm2_has_every_tensor_of_its_class(smollm2):
    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(smollm2.config).state_dict()
    expected.pop("lm_head.weight")
    assert {name: smollm2.shape(name) for name in smollm2.names()} == {k: tuple(v.shape) for k, v in expected.items()}
