"""Llama 2 and 3, SmolLM, and all that share their shape. Knows the order of a layer's calls, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from byref.contract.specs import NormSpec
from byref_models.causal import Block, CausalLM
from byref_models.layers import SelfAttention, gated_mlp

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask


class LlamaLayer:
    """Attention, then the gated MLP, each behind its norm and added to the residual stream."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int) -> None:
        def norm(which: str) -> NormSpec:
            name = f"model.layers.{i}.{which}_layernorm"
            return NormSpec(role=ask.role, layer=i, name=name, width=config.hidden_size, eps=config.rms_norm_eps)

        self.attention = SelfAttention(config, ask, i, norm("input"), bias=config.attention_bias)
        self.mlp = ask(self, "mlp", gated_mlp(config, ask.role, i, norm("post_attention"), "silu"))

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = self.attention(x, positions, ctx)
        return self.mlp(x, residual=x)


class Llama(CausalLM):
    """`LlamaForCausalLM` of transformers."""

    optional: ClassVar[tuple[str, ...]] = ("model.rotary_emb.", "model.layers.*.rotary_emb.inv_freq")

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        return LlamaLayer(config, ask, i)
