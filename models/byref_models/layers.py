"""Layers that architectures share: each asks for the coarsest call it can name. Knows configurations, no state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from byref.contract.specs import (
    AttentionSpec,
    GatedMLPSpec,
    LinearSpec,
    NormLinearSpec,
    NormSpec,
    Part,
    RotaryAttentionSpec,
    RotarySpec,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask


def rotary(config: PretrainedConfig, role: str, dim: int) -> RotarySpec:
    """The rotary embedding of a configuration.

    The frequencies come from transformers' own table of scaling rules, so every `rope_type` it knows and
    that does not change with the context is meant the same way here.
    """
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        theta = float(config.rope_parameters["rope_theta"])
        frequencies = tuple(theta ** (-2 * i / dim) for i in range(dim // 2))
        return RotarySpec(role=role, name="rotary", dim=dim, inverse_frequencies=frequencies, layout="half")
    with torch.device("cpu"):  # a model is built on the meta device, and these are values
        inverse, amplitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    return RotarySpec(
        role=role,
        name="rotary",
        dim=dim,
        inverse_frequencies=tuple(inverse.tolist()),
        amplitude=amplitude,
        layout="half",
    )


class SelfAttention:
    """Norm, fused projections, rotary attention and output projection of one layer."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, norm: NormSpec, bias: bool = False) -> None:
        name, role = f"model.layers.{i}.self_attn", ask.role
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        parts = tuple(
            Part(f"{name}.{x}_proj.weight", n * dim) for x, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        qkv = LinearSpec(
            role=role, layer=i, name=f"{name}.qkv", fused=parts, inputs=config.hidden_size, bias=bias, shard="outputs"
        )
        self.qkv = ask(self, "qkv", NormLinearSpec(role=role, layer=i, name=qkv.name, norm=norm, linear=qkv))
        attention = AttentionSpec(
            role=role,
            layer=i,
            name=name,
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=dim,
            scale=dim**-0.5,
        )
        self.attend = ask(
            self,
            "attend",
            RotaryAttentionSpec(role=role, layer=i, name=name, attention=attention, rotary=rotary(config, role, dim)),
        )
        self.out = ask(
            self,
            "out",
            LinearSpec(
                role=role,
                layer=i,
                name=f"{name}.o_proj",
                fused=(Part(f"{name}.o_proj.weight", config.hidden_size),),
                inputs=heads * dim,
                bias=bias,
                shard="inputs",
            ),
        )

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        return self.out(self.attend(self.qkv(x), positions, ctx), residual=x)


def gated_mlp(
    config: PretrainedConfig, role: str, i: int, norm: NormSpec | None, activation: Literal["silu", "gelu_tanh"]
) -> GatedMLPSpec:
    """The gated MLP of layer `i`, its norm included."""
    name, width, inner = f"model.layers.{i}.mlp", config.hidden_size, config.intermediate_size
    gate_up = LinearSpec(
        role=role,
        layer=i,
        name=f"{name}.gate_up",
        fused=(Part(f"{name}.gate_proj.weight", inner), Part(f"{name}.up_proj.weight", inner)),
        inputs=width,
        shard="outputs",
    )
    down = LinearSpec(
        role=role,
        layer=i,
        name=f"{name}.down_proj",
        fused=(Part(f"{name}.down_proj.weight", width),),
        inputs=inner,
        shard="inputs",
    )
    return GatedMLPSpec(role=role, layer=i, name=name, norm=norm, gate_up=gate_up, down=down, activation=activation)
