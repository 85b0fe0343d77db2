"""DeepSeek-V4: residual streams, windows beside compressed entries, first experts by token. Knows names; no cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from byref.contract.errors import ModelError
from byref.contract.specs import HashMoESpec, LinearSpec, NormSpec, Part
from byref_models.causal import CausalLM
from byref_models.compressed import CompressedAttention
from byref_models.experts import mixture
from byref_models.hyper import HyperConnection, StreamHead
from byref_models.layers import gated_mlp, rms_norm

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask
    from byref.contract.specs import MoESpec, Spec

MODULES: Final = 8
"""Draft modules that names are known of; a checkpoint may carry more than its configuration says."""
SCORES: Final[dict[str, Literal["softmax", "sigmoid", "sqrt_softplus"]]] = {
    "softmax": "softmax",
    "sigmoid": "sigmoid",
    "sqrtsoftplus": "sqrt_softplus",
}
RENAMES: Final = (
    (r"^layers\.", "model.layers."),
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^norm\.", "model.norm."),
    (r"^hc_head_", "model.hc_head.hc_"),
    (r"\.hc_head_", ".hc_head.hc_"),
    (r"\.hc_(attn|ffn)_", r".\1_hc."),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.self_attn\.indexer\.compressor\.", ".self_attn.compressor.indexer."),
    (r"\.self_attn\.indexer\.weights_proj\.", ".self_attn.compressor.indexer.scorer.weights_proj."),
    (r"\.self_attn\.indexer\.", ".self_attn.compressor.indexer."),
    (r"\.(self_attn|compressor|indexer)\.norm\.", r".\1.kv_norm."),
    (r"\.q_norm\.", ".q_a_norm."),
    (r"\.w(q_a|q_b|kv|o_a|o_b)\.", r".\1_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.attn_sink$", ".sinks"),
    (r"\.ape$", ".position_bias"),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
)
"""From the published names, and those that transformers saves, to those of transformers' modules."""


class StreamLayer:
    """Attention, then a mixture of experts; each takes its input from the streams and gives its result back to them."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int) -> None:
        self._streams: int = config.hc_mult
        self.attention = CompressedAttention(config, ask, i)
        self.around_attention = HyperConnection(config, ask, i, f"model.layers.{i}.attn_hc")
        self.around_experts = HyperConnection(config, ask, i, f"model.layers.{i}.ffn_hc")
        spec: Spec[Any] = experts(config, ask.role, i)
        self._hashed = isinstance(spec, HashMoESpec)
        self.experts = ask(self, "experts", spec)

    def __call__(self, x: Tensor, ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        streams = x.unflatten(-1, (self._streams, -1))
        one, post, comb = self.around_attention.split(streams)
        streams = self.around_attention.join(self.attention(one, positions, ctx), streams, post, comb)
        one, post, comb = self.around_experts.split(streams)
        out = self.experts(one, ids) if self._hashed else self.experts(one)
        return self.around_experts.join(out, streams, post, comb).flatten(-2)


class DeepseekV4(CausalLM):
    """`DeepseekV4ForCausalLM` of transformers. A row between layers is its streams, side by side."""

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        first = first_module(config)
        self.renames = (*((rf"^mtp\.{k}\.", f"model.layers.{first + k}.") for k in range(MODULES)), *RENAMES)
        self.optional = (*CausalLM.optional, *(f"model.layers.{first + k}.*" for k in range(MODULES)))
        self._streams: int = config.hc_mult
        super().__init__(config, ask)
        self.collapse = StreamHead(config, ask, -1, self.head_name(config))

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> StreamLayer:
        return StreamLayer(config, ask, i)

    def stream_width(self, config: PretrainedConfig) -> int:
        return int(config.hc_mult * config.hidden_size)

    def head_name(self, config: PretrainedConfig) -> str:
        """Of what makes one of the streams."""
        return "model.hc_head"

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        return self.through(self.embed(ids).repeat(1, self._streams), ids, positions, ctx)

    def through(self, x: Tensor, ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """From the input of the first layer to logits."""
        for layer in self.layers:
            x = layer(x, ids, positions, ctx)
        return self.head(self.finish(self.rows(x, ctx)))

    def finish(self, x: Tensor) -> Tensor:
        return self.norm(self.collapse(x.unflatten(-1, (self._streams, -1))))


class DeepseekV4MTP(DeepseekV4):
    """The draft module: row i has the token after position i and the target's streams at it, as a tap "last" shows."""

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        super().__init__(config, ask)
        self.input_width = self.stream_width(config)
        i, width, eps = self.numbers(config).start, config.hidden_size, config.rms_norm_eps
        name = f"model.layers.{i}"
        for attribute in ("enorm", "hnorm"):
            norm = NormSpec(role=ask.role, layer=i, name=f"{name}.{attribute}", width=width, eps=eps)
            setattr(self, attribute, ask(self, attribute, norm))
        for attribute in ("e_proj", "h_proj"):
            part = Part(f"{name}.{attribute}.weight", width)
            linear = LinearSpec(role=ask.role, layer=i, name=f"{name}.{attribute}", fused=(part,), inputs=width)
            setattr(self, attribute, ask(self, attribute, linear))

    def numbers(self, config: PretrainedConfig) -> range:
        first = first_module(config) + int(getattr(config, "mtp_module", 0))
        return range(first, first + 1)

    def norm_name(self, config: PretrainedConfig) -> str:
        return f"model.layers.{self.numbers(config).start}.norm"

    def head_name(self, config: PretrainedConfig) -> str:
        return f"model.layers.{self.numbers(config).start}.hc_head"

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        assert hidden is not None
        streams = hidden.unflatten(-1, (self._streams, -1))
        token = self.e_proj(self.enorm(self.embed(ids)))  # type: ignore[attr-defined]
        before = self.h_proj(self.hnorm(streams).flatten(0, 1)).view_as(streams)  # type: ignore[attr-defined]
        return self.through((before + token.unsqueeze(1)).flatten(1), ids, positions, ctx)


def first_module(config: PretrainedConfig) -> int:
    """Draft modules are numbered on from the checkpoint's layers, of which a role may have fewer."""
    return len(config.layer_types)


def experts(config: PretrainedConfig, role: str, i: int) -> MoESpec | HashMoESpec:
    """The second half of layer `i`.

    Raises:
        ModelError: scores of a kind that is not known.
    """
    if config.scoring_func not in SCORES:
        known = ", ".join(SCORES)
        raise ModelError(
            f"scores of kind {config.scoring_func!r} are unknown", where="scoring_func", hint=f"one of {known}"
        )
    kinds, limit, inner = config.mlp_layer_types, config.swiglu_limit, config.moe_intermediate_size
    hashed = i < len(kinds) and kinds[i] == "hash_moe"
    name = f"model.layers.{i}.mlp"
    shared = gated_mlp(
        config, role, i, None, name="mlp.shared_experts", inner=inner * config.n_shared_experts, limit=limit
    )
    moe = mixture(
        config,
        role,
        i,
        rms_norm(config, role, i, "post_attention_layernorm"),
        name="mlp",
        parts=("gate_proj", "up_proj", "down_proj"),
        experts=config.n_routed_experts,
        inner=inner,
        renormalise=True,
        score=SCORES[config.scoring_func],
        correction=None if hashed else f"{name}.gate.e_score_correction_bias",
        scale=config.routed_scaling_factor,
        shared=shared,
        limit=limit,
    )
    if not hashed:
        return moe
    table = f"{name}.gate.tid2eid"
    return HashMoESpec(role=role, layer=i, name=name, moe=moe, table=table, vocabulary=config.vocab_size)
