"""Llama 2 and 3, SmolLM, and all that share their shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref_models.causal import Block, CausalLM
from byref_models.layers import DecoderLayer, SelfAttention, gated_mlp, rms_norm

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from byref.contract.model import Ask


class Llama(CausalLM):
    """`LlamaForCausalLM` of transformers."""

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        norm, biased = rms_norm(config, ask.role, i, "input_layernorm"), config.attention_bias
        attention = SelfAttention(config, ask, i, norm, bias=biased, out_bias=biased)
        norm = rms_norm(config, ask.role, i, "post_attention_layernorm")
        return DecoderLayer(ask, attention, gated_mlp(config, ask.role, i, norm, bias=config.mlp_bias))
