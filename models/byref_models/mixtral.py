"""Mixtral: Mistral's attention, and a mixture of experts in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref_models.causal import Block, CausalLM
from byref_models.experts import mixture
from byref_models.layers import DecoderLayer, SelfAttention, rms_norm, window

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from byref.contract.model import Ask


class Mixtral(CausalLM):
    """`MixtralForCausalLM` of transformers."""

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        norm = rms_norm(config, ask.role, i, "input_layernorm")
        attention = SelfAttention(config, ask, i, norm, window=window(config, i))
        experts = mixture(
            config,
            ask.role,
            i,
            rms_norm(config, ask.role, i, "post_attention_layernorm"),
            name="block_sparse_moe",
            parts=("w1", "w3", "w2"),
            experts=config.num_local_experts,
            inner=config.intermediate_size,
            renormalise=True,
        )
        return DecoderLayer(ask, attention, experts)
