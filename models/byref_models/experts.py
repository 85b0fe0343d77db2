"""Mixtures of experts as checkpoints name them. Knows configurations; computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from byref.contract.specs import LinearSpec, MoESpec, NormSpec, Part
from byref_models.layers import activation

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def mixture(
    config: PretrainedConfig,
    role: str,
    i: int,
    norm: NormSpec,
    *,
    name: str,
    parts: tuple[str, str, str],
    experts: int,
    inner: int,
    renormalise: bool,
    **more: Any,
) -> MoESpec:
    """The experts of layer `i`: `name` is their module's, `parts` what it calls gate, up and down of one of them;
    `more` are further fields of the spec."""
    name, width = f"model.layers.{i}.{name}", config.hidden_size

    def of_all(part: str, rows: int) -> tuple[Part, ...]:
        return tuple(Part(f"{name}.experts.{e}.{part}.weight", rows) for e in range(experts))

    router = LinearSpec(
        role=role, layer=i, name=f"{name}.gate", fused=(Part(f"{name}.gate.weight", experts),), inputs=width
    )
    gate, up, down = parts
    return MoESpec(
        role=role,
        layer=i,
        name=name,
        norm=norm,
        router=router,
        top_k=config.num_experts_per_tok,
        renormalise=renormalise,
        gate=of_all(gate, inner),
        up=of_all(up, inner),
        down=of_all(down, width),
        inputs=width,
        activation=activation(config),
        **more,
    )
