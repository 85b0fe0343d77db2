"""A tiny Llama, as transformers saves it and as a GGUF file made of it by rules written down here again."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import STORED
from transformers import LlamaConfig, LlamaForCausalLM

from byref.contract.errors import ModelError
from byref.loading import open_checkpoint

HEADS, KV_HEADS, LAYERS = 4, 2, 2


def tiny_config(**changes):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "vocab_size": 160}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 128}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return LlamaConfig(**(sizes | heads | ids | {"attention_bias": True, "tie_word_embeddings": False} | changes))


@pytest.fixture(scope="session")
def tiny():
    """A tiny Llama in fp32 with random weights and biases."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny_config())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model.eval()


def stored_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{STORED[part]}.{suffix}"
    return f"{STORED[stem]}.{suffix}"


def stored_rows(name: str, tensor: np.ndarray) -> np.ndarray:
    """The rows of each head with its halves interleaved, as llama.cpp converts Llama."""
    heads = HEADS if ".q_proj." in name else KV_HEADS if ".k_proj." in name else 0
    if not heads:
        return tensor
    half = tensor.shape[0] // heads // 2
    out = np.empty_like(tensor)
    for head in range(heads):
        for i in range(half):
            for part in (0, 1):
                out[head * 2 * half + 2 * i + part] = tensor[head * 2 * half + part * half + i]
    return out


def metadata_of(config):
    return {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }


def write_gguf(path, metadata, tensors, architecture="llama"):
    """Write a file: `metadata` keys without a dot at front take the architecture's prefix; `tensors` are
    name -> array, or (raw bytes, type)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = key if key.startswith(("tokenizer.", "general.", "split.")) else f"{architecture}.{key}"
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(name, value)
    for name, value in tensors.items():
        data, kind = value if isinstance(value, tuple) else (value, None)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised(array: np.ndarray, kind: Type):
    """Matrices in `kind`, vectors as they are."""
    if array.ndim == 1 or kind is Type.F32:
        return array
    return gguf.quantize(array, kind), kind


@pytest.fixture
def gguf_of(tmp_path, tiny):
    """Writes the tiny Llama as a GGUF file in one type."""

    def write(kind=Type.F32, changes=None, more=None, drop=(), name="tiny.gguf"):
        tensors = {
            stored_name(name): quantised(stored_rows(name, tensor.detach().numpy()), kind)
            for name, tensor in tiny.state_dict().items()
            if name not in drop
        }
        metadata = metadata_of(tiny.config) | {f"tokenizer.ggml.{k}": v for k, v in token_keys().items()}
        return write_gguf(tmp_path / name, metadata | (changes or {}), tensors | (more or {}))

    return write


def token_keys():
    return {"model": "gpt2", "pre": "smollm", "bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 2}


@pytest.fixture(scope="session")
def smollm2():
    """The real model, where it has been pulled."""
    try:
        return open_checkpoint("smollm2")
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")


@pytest.fixture(scope="session")
def tools():
    """The functions above for test modules, which cannot import this file."""
    from types import SimpleNamespace

    return SimpleNamespace(
        write_gguf=write_gguf, metadata_of=metadata_of, tiny_config=tiny_config, stored_name=stored_name
    )
