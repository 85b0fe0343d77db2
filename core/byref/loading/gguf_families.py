"""What GGUF files of each family say beyond the table that transformers keeps. Knows settings; reads no tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from byref.contract.errors import ModelError
from byref.loading.gguf_header import GGUFHeader

Fields = dict[str, Any]

MORE: Mapping[str, Mapping[str, str]] = {
    "gemma3": {"final_logit_softcapping": "final_logit_softcapping"},
    "mixtral": {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    "phi3": {
        "attention.sliding_window": "sliding_window",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
    },
    "qwen3moe": {"expert_feed_forward_length": "moe_intermediate_size", "expert_weights_norm": "norm_topk_prob"},
}
"""Settings that transformers' own table lacks, and the fields they are."""
_BIASES = frozenset({"gemma3", "llama", "qwen3", "qwen3moe"})
"""Families whose configuration says whether attention has biases."""
_GEMMA3_PATTERN = 6
"""Every so-maniest layer of Gemma 3 is global."""
_GEMMA3_27B = 62
"""Layers of the one Gemma 3 whose scores are scaled by hidden size over heads, not by the head's size."""


def complete(header: GGUFHeader, fields: Fields, rope: Fields | None) -> Fields:
    """`fields` of a configuration with what follows from the settings, tensors and rotary scaling together.

    Raises:
        ModelError: heads of unequal keys and values, or rotated in part where the family rotates them whole.
    """
    found = {**fields, **_heads(header, fields)}
    if header.family in _BIASES:
        found["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    if header.family == "llama":
        found["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    return _FAMILIES.get(header.family, _plain)(header, found, rope)


def _heads(header: GGUFHeader, fields: Fields) -> Fields:
    settings = header.settings()
    key = settings.get("attention.key_length")
    value, rotated = settings.get("attention.value_length", key), settings.get("rope.dimension_count", key)
    if value != key or (key and rotated != key and header.family != "phi3"):
        raise ModelError(
            f"heads have {key} elements in keys, {value} in values, and {rotated} are rotated",
            where=header.path,
            hint="the same model as a Hugging Face folder",
        )
    return {"head_dim": key} if key else {}


def _plain(header: GGUFHeader, fields: Fields, rope: Fields | None) -> Fields:
    if rope:
        fields["rope_parameters"] = rope | {"rope_theta": fields.pop("rope_theta", 10000.0)}
    return fields


def _gemma3(header: GGUFHeader, fields: Fields, rope: Fields | None) -> Fields:
    """Scaling is of the global layers; the local ones have a base of their own."""
    settings, layers = header.settings(), fields["num_hidden_layers"]
    pattern = settings.get("attention.sliding_window_pattern", _GEMMA3_PATTERN)
    local = [bool((i + 1) % pattern) for i in range(layers)] if isinstance(pattern, int) else pattern
    kinds = ("full_attention", "sliding_attention" if fields.get("sliding_window") else "full_attention")
    fields["layer_types"] = [kinds[bool(sliding)] for sliding in local]
    fields["rope_parameters"] = {
        "full_attention": (rope or {"rope_type": "default"}) | {"rope_theta": fields.pop("rope_theta", 1e6)},
        "sliding_attention": {"rope_type": "default", "rope_theta": settings.get("rope.freq_base_swa", 10000.0)},
    }
    by_head = fields["hidden_size"] // fields["num_attention_heads"]
    fields["query_pre_attn_scalar"] = by_head if layers == _GEMMA3_27B else fields["head_dim"]
    return fields


def _phi3(header: GGUFHeader, fields: Fields, rope: Fields | None) -> Fields:
    """A window of zero is none."""
    size = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    rotated = header.settings().get("rope.dimension_count", size)
    fields["sliding_window"] = fields.get("sliding_window") or None
    fields["rope_parameters"] = (rope or {"rope_type": "default"}) | {
        "rope_theta": fields.pop("rope_theta", 10000.0),
        "partial_rotary_factor": rotated / size,
    }
    return fields


def _qwen3moe(header: GGUFHeader, fields: Fields, rope: Fields | None) -> Fields:
    """Weights of the chosen experts add up to one unless the file says otherwise."""
    fields.setdefault("norm_topk_prob", True)
    return _plain(header, fields, rope)


_FAMILIES: Mapping[str, Callable[[GGUFHeader, Fields, Fields | None], Fields]] = {
    "gemma3": _gemma3,
    "phi3": _phi3,
    "qwen3moe": _qwen3moe,
}
