"""EAGLE heads as models of the draft role. They know their layouts; not who feeds them, and no request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from byref.contract.calls import Project, Take
from byref.contract.specs import (
    AttentionSpec,
    EmbedSpec,
    GatedMLPSpec,
    LinearSpec,
    NormSpec,
    Part,
    RotaryAttentionSpec,
    RowSpec,
    Spec,
    TapSpec,
)
from byref_models.layers import activation, head_dim
from byref_models.rotary import rotary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask

HEADS: Mapping[str, str] = {"eagle1": f"{__name__}:Eagle1", "eagle3": f"{__name__}:Eagle3"}


@dataclass(frozen=True, kw_only=True)
class FeatureSpec(Spec[Project]):
    """The projection of what a head is fed by: the hidden states that enter these layers of the target, side by side;
    none names the low, middle and high layer of EAGLE-3. `last` is the normed hidden state after all layers instead."""

    linear: LinearSpec
    entering: tuple[int, ...] = ()
    last: bool = False

    def points(self, layers: int) -> list[tuple[str, int]]:
        """Taps of a target of so many layers: (point, layer)."""
        if self.last:
            return [("normed", -1)]
        entering = self.entering or (2, layers // 2, layers - 3)
        return [("layer", i - 1) if i else ("embed", -1) for i in entering]


class _Head:
    """One decoder layer over the target's hidden states."""

    optional: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    prefix: ClassVar[str]

    def __init__(self, config: PretrainedConfig, ask: Ask, inputs: int) -> None:
        self.width: int = config.hidden_size
        role = self._role = ask.role
        embed = EmbedSpec(role=role, name="embed_tokens", rows=config.vocab_size, width=self.width)
        self.embed = ask(self, "embed", embed)
        self.qkv = ask(self, "qkv", self._qkv(config, inputs))
        self.attend = ask(self, "attend", self._attention(config))
        self.out = ask(self, "out", self._linear("self_attn.o_proj", config.num_attention_heads * head_dim(config)))
        self.mlp = ask(self, "mlp", self._mlp(config))
        self.rows = ask(self, "rows", RowSpec(role=role, name="rows", width=self.width))
        ask.tap(TapSpec(role=role, name="last", point="last", width=self.width), self._tap_rows)

    def _tap_rows(self, take: Take) -> None:
        rows = self.rows

        def tapped(hidden: Tensor, ctx: ForwardContext) -> Tensor:
            take(hidden, ctx)
            return rows(hidden, ctx)

        self.rows = tapped

    def norm(self, config: PretrainedConfig, name: str) -> NormSpec:
        return NormSpec(role=self._role, layer=0, name=name, width=self.width, eps=config.rms_norm_eps)

    def _linear(self, name: str, inputs: int) -> LinearSpec:
        full = f"{self.prefix}.{name}"
        part = Part(f"{full}.weight", self.width)
        return LinearSpec(role=self._role, layer=0, name=full, fused=(part,), inputs=inputs)

    def _qkv(self, config: PretrainedConfig, inputs: int) -> LinearSpec:
        name, dim = f"{self.prefix}.self_attn", head_dim(config)
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
        parts = tuple(Part(f"{name}.{x}_proj.weight", n * dim) for x, n in heads.items())
        bias = bool(getattr(config, "attention_bias", False))
        return LinearSpec(role=self._role, layer=0, name=f"{name}.qkv", fused=parts, inputs=inputs, bias=bias)

    def _attention(self, config: PretrainedConfig) -> RotaryAttentionSpec:
        name, dim = f"{self.prefix}.self_attn", head_dim(config)
        attention = AttentionSpec(
            role=self._role,
            layer=0,
            name=name,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            key_dim=dim,
            value_dim=dim,
            scale=dim**-0.5,
        )
        turn = rotary(config, self._role, dim)
        return RotaryAttentionSpec(role=self._role, layer=0, name=name, attention=attention, rotary=turn)

    def _mlp(self, config: PretrainedConfig) -> GatedMLPSpec:
        name, inner = f"{self.prefix}.mlp", config.intermediate_size
        parts = tuple(Part(f"{name}.{x}_proj.weight", inner) for x in ("gate", "up"))
        gate_up = LinearSpec(role=self._role, layer=0, name=f"{name}.gate_up", fused=parts, inputs=self.width)
        return GatedMLPSpec(
            role=self._role,
            layer=0,
            name=name,
            norm=self.norm(config, f"{self.prefix}.post_attention_layernorm"),
            gate_up=gate_up,
            down=self._linear("mlp.down_proj", inner),
            activation=activation(config),
        )

    def _vocabulary(self, ask: Ask, rows: int) -> None:
        self.vocabulary = rows
        part = Part("lm_head.weight", rows)
        head = LinearSpec(role=self._role, name="lm_head", fused=(part,), inputs=self.width, narrow=True)
        self.head = ask(self, "head", head)

    def _layer(self, x: Tensor, residual: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        attended = self.out(self.attend(self.qkv(x), positions, ctx), residual=residual)
        return self.rows(self.mlp(attended, residual=attended), ctx)


class Eagle1(_Head):
    """EAGLE and EAGLE-2: the token and the normed last hidden state, joined by `fc`; the target's own projection."""

    prefix = "layers.0"

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        super().__init__(config, ask, config.hidden_size)
        self.input_width = self.width
        part, bias = Part("fc.weight", self.width), bool(getattr(config, "bias", True))
        fc = LinearSpec(role=ask.role, name="fc", fused=(part,), inputs=2 * self.width, bias=bias)
        self.fc = ask(self, "fc", FeatureSpec(role=ask.role, name="fc", linear=fc, last=True))
        self._vocabulary(ask, config.vocab_size)

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        assert hidden is not None
        x = self.fc(torch.cat((self.embed(ids), hidden), -1))
        return self.head(self._layer(x, x, positions, ctx))


class Eagle3(_Head):
    """EAGLE-3: three hidden states of the target, joined by `fc` at the first step; then its own, as it is."""

    prefix = "midlayer"

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        super().__init__(config, ask, 2 * config.hidden_size)
        entering = tuple(getattr(config, "eagle_aux_hidden_state_layer_ids", None) or ())
        taken = (len(entering) or 3) * (getattr(config, "target_hidden_size", None) or self.width)
        self.input_width = max(taken, self.width)
        self._norm_first = bool(getattr(config, "norm_before_residual", False))
        fc = LinearSpec(role=ask.role, name="fc", fused=(Part("fc.weight", self.width),), inputs=taken)
        self.fc = ask(self, "fc", FeatureSpec(role=ask.role, name="fc", linear=fc, entering=entering))
        self.token_norm = ask(self, "token_norm", self.norm(config, f"{self.prefix}.input_layernorm"))
        self.hidden_norm = ask(self, "hidden_norm", self.norm(config, f"{self.prefix}.hidden_norm"))
        self.last_norm = ask(self, "last_norm", self.norm(config, "norm"))
        self._vocabulary(ask, getattr(config, "draft_vocab_size", None) or config.vocab_size)

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        assert hidden is not None
        fed = self.fc(hidden) if ctx.draft_step == 0 else hidden[:, : self.width].contiguous()
        x = torch.cat((self.token_norm(self.embed(ids)), self.hidden_norm(fed)), -1)
        residual = x[:, self.width :] if self._norm_first else fed
        return self.head(self.last_norm(self._layer(x, residual, positions, ctx)))
