"""Gemma 3, text only: norms on both sides of each half, sliding layers with a rotary embedding of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from byref.contract.errors import ModelError
from byref_models.causal import Block, CausalLM
from byref_models.layers import SelfAttention, gated_mlp, head_dim, rms_norm, window
from byref_models.rotary import rotary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask
    from byref.contract.specs import NormSpec

OFFSET = 1.0
"""Norm weights are stored less one."""


class Gemma3Layer:
    """Attention, then the gated MLP; each result is normed before it is added to the residual stream."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int) -> None:
        def norm(name: str) -> NormSpec:
            return rms_norm(config, ask.role, i, f"{name}_layernorm", offset=OFFSET)

        self.attention = SelfAttention(
            config,
            ask,
            i,
            norm("input"),
            bias=config.attention_bias,
            out_bias=config.attention_bias,
            window=window(config, i),
            scale=config.query_pre_attn_scalar**-0.5,
            turn=rotary(config, ask.role, head_dim(config), config.layer_types[i]),
            qk_offset=OFFSET,
        )
        self.after_attention = ask(self, "after_attention", norm("post_attention"))
        self.mlp = ask(self, "mlp", gated_mlp(config, ask.role, i, norm("pre_feedforward")))
        self.after_mlp = ask(self, "after_mlp", norm("post_feedforward"))

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = x + self.after_attention(self.attention(x, positions, ctx))
        return x + self.after_mlp(self.mlp(x))


class Gemma3(CausalLM):
    """`Gemma3ForCausalLM` of transformers."""

    norm_offset: ClassVar[float] = OFFSET

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        for field in ("attn_logit_softcapping", "use_bidirectional_attention"):
            if getattr(config, field, None):
                raise ModelError(f"a Gemma 3 with {field} is not computed", where=field, hint="a published Gemma 3")
        self.softcap: float | None = config.final_logit_softcapping
        super().__init__(config, ask)

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        return Gemma3Layer(config, ask, i)

    def embedding_scale(self, config: PretrainedConfig) -> float:
        return float(config.hidden_size**0.5)

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        logits = super().__call__(ids, positions, hidden, ctx)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap
