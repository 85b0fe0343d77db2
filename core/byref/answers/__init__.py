"""Core's own answers to specs: plain torch, on any device. Knows specs and pools; no plugin and no model."""

from collections.abc import Callable
from typing import Any, Final

from byref.answers.attention import answer_attention
from byref.answers.coarse import answer_gated_mlp, answer_norm_linear, answer_rotary_attention
from byref.answers.experts import answer_hash_moe, answer_moe
from byref.answers.fine import answer_embed, answer_layer_norm, answer_norm, answer_rows, answer_tensor
from byref.answers.latent import answer_latent_attention
from byref.answers.linear import answer_grouped_linear, answer_linear
from byref.answers.rotary import answer_rotary
from byref.contract import specs

ANSWERS: Final[dict[type, Callable[..., Any]]] = {
    specs.LinearSpec: answer_linear,
    specs.EmbedSpec: answer_embed,
    specs.NormSpec: answer_norm,
    specs.LayerNormSpec: answer_layer_norm,
    specs.TensorSpec: answer_tensor,
    specs.GroupedLinearSpec: answer_grouped_linear,
    specs.RowSpec: answer_rows,
    specs.RotarySpec: answer_rotary,
    specs.AttentionSpec: answer_attention,
    specs.RotaryAttentionSpec: answer_rotary_attention,
    specs.LatentAttentionSpec: answer_latent_attention,
    specs.NormLinearSpec: answer_norm_linear,
    specs.GatedMLPSpec: answer_gated_mlp,
    specs.MoESpec: answer_moe,
    specs.HashMoESpec: answer_hash_moe,
}
