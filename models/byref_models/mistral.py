"""Mistral: Llama with a sliding window in every layer, where the configuration has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref_models.causal import Block, CausalLM
from byref_models.layers import DecoderLayer, SelfAttention, gated_mlp, rms_norm, window

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from byref.contract.model import Ask


class Mistral(CausalLM):
    """`MistralForCausalLM` of transformers."""

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        norm = rms_norm(config, ask.role, i, "input_layernorm")
        attention = SelfAttention(config, ask, i, norm, window=window(config, i))
        norm = rms_norm(config, ask.role, i, "post_attention_layernorm")
        return DecoderLayer(ask, attention, gated_mlp(config, ask.role, i, norm))
