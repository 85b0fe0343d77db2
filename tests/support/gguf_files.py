"""Writes a family's tiny model as a GGUF file, by llama.cpp's rules written down here again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import llamacpp
import numpy as np
from checkpoints import END, PAIRS, VOCABULARY, byte_level
from gguf import GGMLQuantizationType as Type
from transformers import PreTrainedModel

ARCHITECTURES = {
    "Llama": "llama",
    "Mistral": "llama",
    "Qwen2": "qwen2",
    "Qwen3": "qwen3",
    "Gemma 3": "gemma3",
    "Phi-3": "phi3",
    "Mixtral": "llama",
    "Qwen3-MoE": "qwen3moe",
}
STORED = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
GEMMA3 = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tensors_of(family: str, model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Names and values as the file has them."""
    config, found = model.config, {}
    names = STORED | (GEMMA3 if family == "Gemma 3" else {})
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+?)(\.weight|\.bias)?", name)
        block, part, suffix = match.groups() if match else ("", *re.fullmatch(r"(.+)(\.weight)", name).groups())
        stem = f"blk.{block}." if match else ""
        if part == "mlp.experts.gate_up_proj":
            gate, up = np.split(values, 2, axis=1)
            found |= {f"{stem}ffn_gate_exps.weight": gate.copy(), f"{stem}ffn_up_exps.weight": up.copy()}
        elif part == "mlp.experts.down_proj":
            found[f"{stem}ffn_down_exps.weight"] = values
        else:
            found[f"{stem}{names[part]}{suffix}"] = _stored(family, config, part, values)
    if family == "Phi-3":
        for kind in ("long", "short"):
            factors = np.array(config.rope_parameters[f"{kind}_factor"], np.float32)
            found[f"rope_factors_{kind}.weight"] = factors
    return found


def _stored(family: str, config: Any, part: str, values: np.ndarray) -> np.ndarray:
    if family == "Gemma 3" and part.endswith("norm"):
        return values + 1
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}.get(part)
    if ARCHITECTURES[family] != "llama" or heads is None:
        return values
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def settings_of(family: str, config: Any) -> dict[str, Any]:
    """The settings under the architecture's prefix."""
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    found = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    if family != "Phi-3":
        found |= {"attention.key_length": size, "attention.value_length": size}
    if ARCHITECTURES[family] == "llama":
        found["rope.dimension_count"] = size
    return found | _more(family, config, size)


def _more(family: str, config: Any, size: int) -> dict[str, Any]:
    if family == "Gemma 3":
        window = {"attention.sliding_window": config.sliding_window}
        if config.final_logit_softcapping:
            window["final_logit_softcapping"] = float(config.final_logit_softcapping)
        return window
    if family == "Phi-3":
        return {
            "attention.sliding_window": config.sliding_window or 0,
            "rope.dimension_count": int(size * config.rope_parameters["partial_rotary_factor"]),
            "rope.scaling.original_context_length": config.original_max_position_embeddings,
            "rope.scaling.attn_factor": amplitude(config),
        }
    if family == "Mixtral":
        return {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
    if family == "Qwen3-MoE":
        return {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    return {}


def amplitude(config: Any) -> float:
    """What a converter writes for `longrope`."""
    scale = config.max_position_embeddings / config.original_max_position_embeddings
    return float(np.sqrt(1 + np.log(scale) / np.log(config.original_max_position_embeddings)))


def tokenizer_keys() -> dict[str, Any]:
    """The test tokenizer."""
    tokens = [token for token, _ in sorted(byte_level().get_vocab().items(), key=lambda item: item[1])]
    special = {i for i, token in byte_level().get_added_tokens_decoder().items() if token.special}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in range(VOCABULARY)],
        "tokenizer.ggml.merges": [f"{pair[0]} {pair[1]}" for pair in PAIRS],
        "tokenizer.ggml.eos_token_id": END,
    }


def write_family(path: Path, family: str, model: PreTrainedModel, kind: Type = Type.F32, **settings: Any) -> Path:
    """Write the file; matrices in `kind`, `settings` besides the usual ones (dots as underscores are not meant)."""
    architecture = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, architecture)
    own = {f"{architecture}.{key}": value for key, value in (settings_of(family, model.config) | settings).items()}
    for key, value in (own | tokenizer_keys()).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for name, values in tensors_of(family, model).items():
        plain = values.ndim == 1 or kind is Type.F32
        data = np.ascontiguousarray(values) if plain else llamacpp.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
