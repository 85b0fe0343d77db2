"""DeepSeek-V3: latent attention, and after the first layers a mixture of experts beside one that every row takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref_models.causal import Block, CausalLM
from byref_models.experts import mixture
from byref_models.layers import DecoderLayer, gated_mlp, rms_norm
from byref_models.mla import MLAttention

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from byref.contract.model import Ask
    from byref.contract.specs import GatedMLPSpec, MoESpec


class DeepseekV3(CausalLM):
    """`DeepseekV3ForCausalLM` of transformers. The draft modules behind its layers are left to a drafter."""

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        self.optional = (*self.optional, *draft_modules(config))
        super().__init__(config, ask)

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Block:
        return DecoderLayer(ask, self.attention(config, ask, i), feed_forward(config, ask.role, i))

    def attention(self, config: PretrainedConfig, ask: Ask, i: int) -> MLAttention:
        """The first half of layer `i`."""
        return MLAttention(config, ask, i)


def draft_modules(config: PretrainedConfig) -> tuple[str, ...]:
    """Patterns of the tensors behind the last layer: one decoder layer and what joins it to the model for each."""
    first = config.num_hidden_layers
    count = getattr(config, "num_nextn_predict_layers", None) or 1
    return tuple(f"model.layers.{first + k}.*" for k in range(count))


def is_mixture(config: PretrainedConfig, i: int) -> bool:
    """Whether layer `i` has experts; layers of draft modules have."""
    kinds = getattr(config, "mlp_layer_types", None)
    if kinds is None:
        return bool(i >= config.first_k_dense_replace)
    return i >= len(kinds) or kinds[i] == "sparse"


def feed_forward(config: PretrainedConfig, role: str, i: int) -> GatedMLPSpec | MoESpec:
    """The second half of layer `i`."""
    norm = rms_norm(config, role, i, "post_attention_layernorm")
    if not is_mixture(config, i):
        return gated_mlp(config, role, i, norm)
    inner = config.moe_intermediate_size
    shared = gated_mlp(config, role, i, None, name="mlp.shared_experts", inner=inner * config.n_shared_experts)
    return mixture(
        config,
        role,
        i,
        norm,
        name="mlp",
        parts=("gate_proj", "up_proj", "down_proj"),
        experts=config.n_routed_experts,
        inner=inner,
        renormalise=config.norm_topk_prob,
        score="sigmoid",
        correction=f"model.layers.{i}.mlp.gate.e_score_correction_bias",
        groups=config.n_group,
        top_groups=config.topk_group,
        scale=config.routed_scaling_factor,
        shared=shared,
    )
