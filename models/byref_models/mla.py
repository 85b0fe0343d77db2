"""Multi-head latent attention as a layer. Knows the DeepSeek configurations and their names; no cache, no selection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol

from byref.contract.errors import ModelError
from byref.contract.specs import (
    AttentionSpec,
    LatentAttentionSpec,
    LinearSpec,
    NormLinearSpec,
    NormSpec,
    Part,
    SelectionSpec,
)
from byref_models.layers import rms_norm
from byref_models.rotary import rotary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask

LATENT_EPS = 1e-6
"""Of the norms inside the attention, whatever the configuration says of the others."""


class Indexer(Protocol):
    """Chooses what the attention of one layer sees, before it attends."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it wants of the layer's normed input."""
        ...

    @property
    def selection(self) -> SelectionSpec:
        """What the attention sees."""
        ...

    def __call__(self, q_latent: Tensor, own: Tensor, positions: Tensor, ctx: ForwardContext) -> None:
        """q_latent [rows, q rank] normed; own [rows, the parts' rows]."""
        ...


class MLAttention:
    """Norm, projections into the two latents, latent attention and output projection of one layer.

    Args:
        config: of the model.
        ask: the model's.
        i: which layer.
        indexer: chooses what is attended to; None attends to everything.

    Raises:
        ModelError: biases beside projections that have none.
    """

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, indexer: Indexer | None = None) -> None:
        self._heads: int = config.num_attention_heads
        self._q_rank: int | None = config.q_lora_rank
        self._entry: int = config.kv_lora_rank + config.qk_rope_head_dim
        self._head: int = config.qk_nope_head_dim + config.qk_rope_head_dim
        self._indexer = indexer
        self.down = ask(self, "down", _down(config, ask.role, i, indexer))
        if self._q_rank is not None:
            self._ask_q(config, ask, i)
        self.attend = ask(self, "attend", _attention(config, ask.role, i, indexer))
        name, inputs = f"model.layers.{i}.self_attn.o_proj", self._heads * config.v_head_dim
        part, bias = (Part(f"{name}.weight", config.hidden_size),), config.attention_bias
        out = LinearSpec(role=ask.role, layer=i, name=name, fused=part, inputs=inputs, bias=bias, shard="inputs")
        self.out = ask(self, "out", out)

    def _ask_q(self, config: PretrainedConfig, ask: Ask, i: int) -> None:
        name, rank = f"model.layers.{i}.self_attn", config.q_lora_rank
        norm = NormSpec(role=ask.role, layer=i, name=f"{name}.q_a_layernorm", width=rank, eps=LATENT_EPS)
        self.q_norm = ask(self, "q_norm", norm)
        part = Part(f"{name}.q_b_proj.weight", self._heads * self._head)
        spec = LinearSpec(role=ask.role, layer=i, name=f"{name}.q_b_proj", fused=(part,), inputs=rank, shard="outputs")
        self.q_up = ask(self, "q_up", spec)

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext, residual: Tensor | None = None) -> Tensor:
        down = self.down(x)
        first = self._q_rank if self._q_rank is not None else self._heads * self._head
        q, latent, own = down[:, :first], down[:, first : first + self._entry], down[:, first + self._entry :]
        if self._q_rank is not None:
            q_latent = self.q_norm(q)
            if self._indexer is not None:
                self._indexer(q_latent, own, positions, ctx)
            q = self.q_up(q_latent)
        q = q.view(-1, self._heads, self._head)
        return self.out(self.attend(q, latent, positions, ctx), residual=residual)


def _down(config: PretrainedConfig, role: str, i: int, indexer: Indexer | None) -> NormLinearSpec:
    """Everything that is a projection of the normed input, as one."""
    name, bias = f"model.layers.{i}.self_attn", bool(config.attention_bias)
    rank, heads = config.q_lora_rank, config.num_attention_heads
    head = config.qk_nope_head_dim + config.qk_rope_head_dim
    if bias and (rank is None or indexer is not None):
        raise ModelError(
            "biases of the latent projections beside others that have none are not computed",
            where=f"attention_bias, {name}",
            hint="a published checkpoint, which has no such bias",
        )
    q = Part(f"{name}.q_proj.weight", heads * head) if rank is None else Part(f"{name}.q_a_proj.weight", rank)
    kv = Part(f"{name}.kv_a_proj_with_mqa.weight", config.kv_lora_rank + config.qk_rope_head_dim)
    parts = (q, kv, *(indexer.parts if indexer else ()))
    linear = LinearSpec(
        role=role, layer=i, name=f"{name}.down", fused=parts, inputs=config.hidden_size, bias=bias, shard="none"
    )
    norm = rms_norm(config, role, i, "input_layernorm")
    return NormLinearSpec(role=role, layer=i, name=linear.name, norm=norm, linear=linear)


def _attention(config: PretrainedConfig, role: str, i: int, indexer: Indexer | None) -> LatentAttentionSpec:
    name, rank = f"model.layers.{i}.self_attn", config.kv_lora_rank
    plain, turned = config.qk_nope_head_dim, config.qk_rope_head_dim
    attention = AttentionSpec(
        role=role,
        layer=i,
        name=name,
        heads=config.num_attention_heads,
        kv_heads=1,
        key_dim=rank + turned,
        value_dim=rank,
        scale=score_scale(config),
        form="mla",
        selection=indexer.selection if indexer else None,
    )
    rows = config.num_attention_heads * (plain + config.v_head_dim)
    return LatentAttentionSpec(
        role=role,
        layer=i,
        name=name,
        attention=attention,
        rotary=rotary(config, role, turned, layout=latent_layout(config)),
        norm=NormSpec(role=role, layer=i, name=f"{name}.kv_a_layernorm", width=rank, eps=LATENT_EPS),
        expand=Part(f"{name}.kv_b_proj.weight", rows),
        plain_dim=plain,
        head_value_dim=config.v_head_dim,
    )


def latent_layout(config: PretrainedConfig) -> Literal["half", "interleaved"]:
    """How the attention's rotary elements are paired: DeepSeek-V3's configuration may say, later ones interleave."""
    return "interleaved" if getattr(config, "rope_interleave", True) else "half"


def score_scale(config: PretrainedConfig) -> float:
    """One over the root of a head's size, times the square of YaRN's factor where the positions are stretched."""
    scale = float((config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5)
    parameters = config.rope_parameters
    share, factor = parameters.get("mscale_all_dim", 0), parameters.get("factor", 1.0)
    if parameters["rope_type"] == "default" or not share or factor <= 1:
        return scale
    return scale * float(0.1 * share * math.log(factor) + 1.0) ** 2
