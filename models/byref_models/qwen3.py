"""Qwen3, dense and as a mixture of experts: heads of q and k are normed before they are rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref_models.causal import Block, CausalLM
from byref_models.experts import mixture
from byref_models.layers import DecoderLayer, SelfAttention, gated_mlp, rms_norm, window

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from byref.contract.model import Ask
    from byref.contract.specs import GatedMLPSpec, MoESpec, NormSpec


class Qwen3(CausalLM):
    """`Qwen3ForCausalLM` of transformers."""

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        norm, biased = rms_norm(config, ask.role, i, "input_layernorm"), config.attention_bias
        attention = SelfAttention(
            config, ask, i, norm, bias=biased, out_bias=biased, qk_offset=0.0, window=window(config, i)
        )
        norm = rms_norm(config, ask.role, i, "post_attention_layernorm")
        return DecoderLayer(ask, attention, self.mlp(config, ask, i, norm))

    def mlp(self, config: PretrainedConfig, ask: Ask, i: int, norm: NormSpec) -> GatedMLPSpec | MoESpec:
        """What follows the attention of layer `i`."""
        return gated_mlp(config, ask.role, i, norm)


class Qwen3Moe(Qwen3):
    """`Qwen3MoeForCausalLM` of transformers: some layers may keep a single MLP."""

    def mlp(self, config: PretrainedConfig, ask: Ask, i: int, norm: NormSpec) -> GatedMLPSpec | MoESpec:
        if i in config.mlp_only_layers or not config.num_experts or (i + 1) % config.decoder_sparse_step:
            return gated_mlp(config, ask.role, i, norm)
        return mixture(
            config,
            ask.role,
            i,
            norm,
            name="mlp",
            parts=("gate_proj", "up_proj", "down_proj"),
            experts=config.num_experts,
            inner=config.moe_intermediate_size,
            renormalise=config.norm_topk_prob,
        )
