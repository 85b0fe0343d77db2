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


def random_model(family: Family, seed: int = 0, **changes) -> PreTrainedModel:
    """Its model in fp32; biases and norms are random too."""
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(transformers, family.architecture)(family.config(**changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def save_family(folder: Path, name: str, seed: int = 0, **changes) -> Path:
    """Save a random model of the family `name` with a tokenizer in `folder`."""
    random_model(FAMILIES[name], seed, **changes).save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    return folder
