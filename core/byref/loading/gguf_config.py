"""From a GGUF file's metadata to a configuration of transformers. Knows keys and names; reads no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from byref.contract.errors import ModelError
from byref.loading.gguf_families import MORE, complete
from byref.loading.gguf_header import GGUFHeader

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MODEL_TYPES = {
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
"""Where transformers spells a family otherwise."""
END_OF_TURN = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"})
"""Control tokens that end a turn or a text whether or not the file's metadata point at them."""
CONTROL = 3
"""`tokenizer.ggml.token_type` of a control token."""
_MEANT = frozenset(
    {
        "attention.clamp_kqv",
        "attention.scale",
        "attention.sliding_window",
        "attn_logit_softcapping",
        "embedding_scale",
        "expert_count",
        "expert_group_count",
        "expert_shared_count",
        "expert_weights_scale",
        "final_logit_softcapping",
        "logit_scale",
        "residual_scale",
    }
)
"""Settings that change what a model computes: one that cannot be passed on is an error."""
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_TOKEN_FIELDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}


def model_type(header: GGUFHeader) -> str:
    """The name transformers gives the file's architecture."""
    return MODEL_TYPES.get(header.family, header.family)


def class_name(header: GGUFHeader) -> str:
    """The class of transformers, or the file's own word where it has none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type(header))
    return name if isinstance(name, str) else header.architecture


def end_ids(header: GGUFHeader) -> frozenset[int]:
    """Tokens that end a text or a turn: by the file's keys, and control tokens of known meaning."""
    metadata = header.metadata
    named = {metadata[key] for name in _END_KEYS if (key := f"tokenizer.ggml.{name}") in metadata}
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    tokens = enumerate(zip(metadata.get("tokenizer.ggml.tokens", ()), kinds, strict=False))
    return frozenset(named | {i for i, (token, kind) in tokens if kind == CONTROL and token in END_OF_TURN})


def build_config(header: GGUFHeader, rope: dict[str, Any] | None, path: str) -> PretrainedConfig:
    """The configuration the file describes; `rope` is its rotary scaling, without the base.

    Raises:
        ModelError: transformers has no configuration for it.
    """
    from transformers import AutoConfig

    fields = _mapped_fields(header, path) | _tensor_fields(header)
    fields |= {field: header.metadata.get(f"tokenizer.ggml.{key}") for field, key in _TOKEN_FIELDS.items()}
    fields["architectures"] = [class_name(header)]
    fields = complete(header, fields, rope)
    try:
        return AutoConfig.for_model(model_type(header), **fields)
    except Exception as error:  # each configuration validates in its own way
        raise ModelError(
            f"the settings do not fit together: {error}", where=path, hint="convert the model again"
        ) from error


def _mapped_fields(header: GGUFHeader, path: str) -> dict[str, Any]:
    """The settings under the architecture's own prefix, by the table that transformers keeps."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    kept = GGUF_CONFIG_MAPPING.get(model_type(header)) or GGUF_CONFIG_MAPPING.get(header.architecture)
    if kept is None:
        raise ModelError(
            f"transformers has no configuration for GGUF files of architecture {header.architecture!r}",
            where=path,
            hint=f"one of {', '.join(sorted(set(GGUF_CONFIG_MAPPING) - {'general', 'tokenizer'}))}",
        )
    table = kept | MORE.get(header.family, {})
    lost = sorted(key for key, value in header.settings().items() if key in _MEANT and value and key not in table)
    if lost:
        raise ModelError(
            f"the settings {', '.join(lost)} of a {header.architecture} file are not understood",
            where=path,
            hint="the same model as a Hugging Face folder",
        )
    return {table[key]: value for key, value in header.settings().items() if table.get(key) not in (None, -1)}


def _tensor_fields(header: GGUFHeader) -> dict[str, Any]:
    """What only the list of tensors tells."""
    tensors = header.tensors
    fields: dict[str, Any] = {"tie_word_embeddings": "output.weight" not in tensors}
    if embedding := tensors.get("token_embd.weight"):
        fields["vocab_size"] = embedding.shape[0]
    return fields
