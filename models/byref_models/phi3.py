"""Phi-3 and Phi-4: fused tensors in the checkpoint, part of each head rotated, two sets of rotary factors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref_models.causal import Block, CausalLM
from byref_models.layers import DecoderLayer, SelfAttention, gated_mlp, head_dim, rms_norm, window
from byref_models.rotary import rotary

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from byref.contract.model import Ask


class Phi3(CausalLM):
    """`Phi3ForCausalLM` of transformers."""

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        rotated = int(head_dim(config) * config.rope_parameters["partial_rotary_factor"])
        turn = rotary(config, ask.role, rotated)
        norm = rms_norm(config, ask.role, i, "input_layernorm")
        attention = SelfAttention(config, ask, i, norm, window=window(config, i), turn=turn, fused=True)
        norm = rms_norm(config, ask.role, i, "post_attention_layernorm")
        return DecoderLayer(ask, attention, gated_mlp(config, ask.role, i, norm, fused=True))
