"""A tiny random checkpoint of every model family, as transformers saves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoints import END, VOCABULARY, byte_level
from transformers import PreTrainedModel

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": None,
}
"""Weights wide enough that likeliest tokens stand apart: a model whose logits are all alike would agree with anything."""
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 3.0, 5.0]}

DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
}
"""Latent attention, and experts in groups."""


@dataclass(frozen=True)
class Family:
    """One architecture of transformers with what its tiny configuration has besides `SIZES`."""

    architecture: str
    changes: dict[str, Any] = field(default_factory=dict)

    def config(self, **changes):
        """Its configuration."""
        model: Any = getattr(transformers, self.architecture)
        return model.config_class(**(SIZES | self.changes | changes))


FAMILIES = {
    "Llama": Family("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "Mistral": Family("MistralForCausalLM", {"sliding_window": 8, "head_dim": 24}),
    "Qwen2": Family("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "Qwen3": Family("Qwen3ForCausalLM", {"head_dim": 24, "tie_word_embeddings": True}),
    "Gemma 3": Family(
        "Gemma3ForCausalLM",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 40,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "final_logit_softcapping": 20.0,
        },
    ),
    "Phi-3": Family(
        "Phi3ForCausalLM",
        {
            "partial_rotary_factor": 0.5,
            "sliding_window": 24,
            "original_max_position_embeddings": 32,
            "rope_parameters": LONG,
        },
    ),
    "Mixtral": Family("MixtralForCausalLM", {"num_local_experts": 4}),
    "Qwen3-MoE": Family(
        "Qwen3MoeForCausalLM",
        {
            "head_dim": 24,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
        },
    ),
}

LATENT = {"DeepSeek-V3": Family("DeepseekV3ForCausalLM", DEEPSEEK)}
"""Families that no GGUF file is written of here."""
INDEXER = {"index_n_heads": 48, "index_head_dim": 16, "index_topk": 4}
"""Many index heads: with few the relu makes many scores zero, and transformers breaks such ties by chance."""
SPARSE = {
    "DeepSeek-V3.2": Family("DeepseekV32ForCausalLM", DEEPSEEK | INDEXER),
    "GLM-5": Family(
        "GlmMoeDsaForCausalLM",
        DEEPSEEK | INDEXER | {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]},
    ),
    "DeepSeek-V4": Family(
        "DeepseekV4ForCausalLM",
        {
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "head_dim": 24,
            "partial_rotary_factor": 1 / 3,
            "q_lora_rank": 20,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "intermediate_size": 20,
            "layer_types": [
                "sliding_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
            ],
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
            "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
            "sliding_window": 8,
            "o_groups": 2,
            "o_lora_rank": 12,
            "swiglu_limit": 1.0,
            "hc_sinkhorn_iters": 4,
        }
        | INDEXER,
    ),
}
"""Families whose attention is chosen by an indexer, or looks at compressed entries: they need the plugin dsa."""
EVERY = FAMILIES | LATENT | SPARSE


def random_model(family: Family, seed: int = 0, **changes) -> PreTrainedModel:
    """Its model in fp32; biases, norms and corrections of experts are random too."""
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(transformers, family.architecture)(family.config(**changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.2)
            if name.endswith("tid2eid"):
                buffer.copy_(torch.rand(len(buffer), model.config.n_routed_experts).argsort(1)[:, : buffer.shape[1]])
        for name, parameter in model.named_parameters():
            if name.endswith("position_bias"):
                parameter.copy_(torch.randn_like(parameter))
    return model.eval()


def save_family(folder: Path, name: str, seed: int = 0, **changes) -> Path:
    """Save a random model of the family `name` with a tokenizer in `folder`."""
    random_model(EVERY[name], seed, **changes).save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    return folder
