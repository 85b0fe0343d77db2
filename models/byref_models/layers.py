"""Layers that architectures share: each asks for the coarsest call it can name. Knows configurations, no state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from byref.contract.errors import ModelError
from byref.contract.specs import (
    AttentionSpec,
    GatedMLPSpec,
    LinearSpec,
    MoESpec,
    NormLinearSpec,
    NormSpec,
    Part,
    RotaryAttentionSpec,
    RotarySpec,
)
from byref_models.rotary import rotary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask

Activation = Literal["silu", "gelu_tanh"]
_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def activation(config: PretrainedConfig) -> Activation:
    """What the gated MLP applies to its gate.

    Raises:
        ModelError: the configuration names one that is not known.
    """
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"the activation {name!r} is unknown", where="hidden_act", hint=f"one of {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def head_dim(config: PretrainedConfig) -> int:
    """Elements of one head."""
    return getattr(config, "head_dim", None) or int(config.hidden_size // config.num_attention_heads)


def window(config: PretrainedConfig, i: int) -> int | None:
    """Positions that layer `i` sees, its own included; None where that is all the model has.

    Raises:
        ModelError: the layer is of a kind that is not known.
    """
    kinds = getattr(config, "layer_types", None)
    kind = kinds[i] if kinds else "sliding_attention"
    if kind not in {"full_attention", "sliding_attention"}:
        raise ModelError(f"attention of kind {kind!r} is unknown", where=f"layer_types, layer {i}")
    size: int | None = config.sliding_window if kind == "sliding_attention" else None
    return None if size is None or size >= config.max_position_embeddings else size


def rms_norm(
    config: PretrainedConfig, role: str, i: int, name: str, *, width: int | None = None, offset: float = 0.0
) -> NormSpec:
    """The norm `name` of layer `i`, over the hidden state or over `width` elements."""
    return NormSpec(
        role=role,
        layer=i,
        name=f"model.layers.{i}.{name}",
        width=width or config.hidden_size,
        eps=config.rms_norm_eps,
        offset=offset,
    )


class SelfAttention:
    """Norm, fused projections, rotary attention and output projection of one layer.

    Args:
        config: of the model.
        ask: the model's.
        i: which layer.
        norm: before the projections.
        bias: of the q, k and v projections.
        out_bias: of the output projection.
        window: see `AttentionSpec`.
        scale: of the scores; one over the root of the head's size unless given.
        turn: the rotary embedding; that of the configuration unless given.
        qk_offset: heads of q and k are normed, with this offset on the weights; None leaves them.
        fused: the checkpoint keeps q, k and v as one tensor.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        ask: Ask,
        i: int,
        norm: NormSpec,
        *,
        bias: bool = False,
        out_bias: bool = False,
        window: int | None = None,
        scale: float | None = None,
        turn: RotarySpec | None = None,
        qk_offset: float | None = None,
        fused: bool = False,
    ) -> None:
        name, role, dim = f"model.layers.{i}.self_attn", ask.role, head_dim(config)
        qkv = _qkv(config, role, i, bias, fused)
        self.qkv = ask(self, "qkv", NormLinearSpec(role=role, layer=i, name=qkv.name, norm=norm, linear=qkv))
        attention = AttentionSpec(
            role=role,
            layer=i,
            name=name,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            key_dim=dim,
            value_dim=dim,
            scale=dim**-0.5 if scale is None else scale,
            window=window,
        )
        turned = RotaryAttentionSpec(
            role=role,
            layer=i,
            name=name,
            attention=attention,
            rotary=turn or rotary(config, role, dim),
            q_norm=_head_norm(config, role, i, "q", qk_offset),
            k_norm=_head_norm(config, role, i, "k", qk_offset),
        )
        self.attend = ask(self, "attend", turned)
        out = LinearSpec(
            role=role,
            layer=i,
            name=f"{name}.o_proj",
            fused=(Part(f"{name}.o_proj.weight", config.hidden_size),),
            inputs=config.num_attention_heads * dim,
            bias=out_bias,
            shard="inputs",
        )
        self.out = ask(self, "out", out)

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext, residual: Tensor | None = None) -> Tensor:
        return self.out(self.attend(self.qkv(x), positions, ctx), residual=residual)


def _head_norm(config: PretrainedConfig, role: str, i: int, which: str, offset: float | None) -> NormSpec | None:
    if offset is None:
        return None
    return rms_norm(config, role, i, f"self_attn.{which}_norm", width=head_dim(config), offset=offset)


def _qkv(config: PretrainedConfig, role: str, i: int, bias: bool, fused: bool) -> LinearSpec:
    name, dim = f"model.layers.{i}.self_attn", head_dim(config)
    rows = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    parts = [Part(f"{name}.{x}_proj.weight", n * dim) for x, n in rows.items()]
    if fused:
        parts = [Part(f"{name}.qkv_proj.weight", sum(part.rows for part in parts))]
    return LinearSpec(
        role=role,
        layer=i,
        name=f"{name}.qkv",
        fused=tuple(parts),
        inputs=config.hidden_size,
        bias=bias,
        shard="outputs",
    )


def gated_mlp(
    config: PretrainedConfig,
    role: str,
    i: int,
    norm: NormSpec | None,
    *,
    bias: bool = False,
    fused: bool = False,
    name: str = "mlp",
    inner: int | None = None,
    limit: float | None = None,
) -> GatedMLPSpec:
    """The gated MLP of layer `i`, its norm included.

    Args:
        config: of the model.
        role: of the model.
        i: which layer.
        norm: before it.
        bias: of all three projections.
        fused: the checkpoint keeps gate and up as one tensor.
        name: of its module within the layer.
        inner: its width; that of the configuration unless given.
        limit: see `GatedMLPSpec`.
    """
    name, width, inner = f"model.layers.{i}.{name}", config.hidden_size, inner or config.intermediate_size
    parts = [Part(f"{name}.gate_proj.weight", inner), Part(f"{name}.up_proj.weight", inner)]
    if fused:
        parts = [Part(f"{name}.gate_up_proj.weight", 2 * inner)]
    gate_up = LinearSpec(
        role=role,
        layer=i,
        name=f"{name}.gate_up",
        fused=tuple(parts),
        inputs=width,
        bias=bias,
        shard="outputs",
    )
    down = LinearSpec(
        role=role,
        layer=i,
        name=f"{name}.down_proj",
        fused=(Part(f"{name}.down_proj.weight", width),),
        inputs=inner,
        bias=bias,
        shard="inputs",
    )
    return GatedMLPSpec(
        role=role,
        layer=i,
        name=name,
        norm=norm,
        gate_up=gate_up,
        down=down,
        activation=activation(config),
        limit=limit,
    )


class Attention(Protocol):
    """The first half of a layer: x [rows, hidden] -> [rows, hidden], plus `residual` where given."""

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext, residual: Tensor | None = None) -> Tensor: ...


class DecoderLayer:
    """Attention, then an MLP or a mixture of them, each behind its norm and added to the residual stream."""

    def __init__(self, ask: Ask, attention: Attention, mlp: GatedMLPSpec | MoESpec) -> None:
        self.attention = attention
        self.mlp = ask(self, "mlp", mlp)

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        x = self.attention(x, positions, ctx, residual=x)
        return self.mlp(x, residual=x)
