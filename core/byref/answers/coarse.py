"""Coarse specs composed from the finer answers. Knows how parts are put together, not how one is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch import Tensor
from torch.nn import functional

from byref.contract.calls import AttendFused, Project
from byref.contract.context import ForwardContext
from byref.contract.roles import Site
from byref.contract.specs import GatedMLPSpec, NormLinearSpec, RotaryAttentionSpec


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {"silu": functional.silu, "gelu_tanh": _gelu_tanh}


def gate(activation: str, inner: int, limit: float | None) -> Callable[[Tensor], Tensor]:
    """[rows, 2 * inner], gate then up -> act(gate) * up [rows, inner]. Writes into its argument."""
    activate = ACTIVATIONS[activation]

    def gated(both: Tensor) -> Tensor:
        gate, up = both[..., :inner], both[..., inner:]
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return activate(gate).mul_(up)

    return gated


def answer_norm_linear(spec: NormLinearSpec, site: Site) -> Project:
    """The projection of the normed input."""
    norm, linear = site.resolve(spec.norm), site.resolve(spec.linear)

    def project(x: Tensor, residual: Tensor | None = None) -> Tensor:
        return linear(norm(x), residual)  # type: ignore[no-any-return]

    return project


def answer_gated_mlp(spec: GatedMLPSpec, site: Site) -> Project:
    """down(act(gate) * up), the gate's activation in place on the fused projection."""
    gate_up, down = site.resolve(spec.gate_up), site.resolve(spec.down)
    norm = site.resolve(spec.norm) if spec.norm else None
    gated = gate(spec.activation, spec.down.inputs, spec.limit)

    def mlp(x: Tensor, residual: Tensor | None = None) -> Tensor:
        return down(gated(gate_up(x if norm is None else norm(x))), residual)  # type: ignore[no-any-return]

    return mlp


def answer_rotary_attention(spec: RotaryAttentionSpec, site: Site) -> AttendFused:
    """Splits qkv by views, rotates q and k together in place, and hands k and v on as one cache entry."""
    rotate, attend = site.resolve(spec.rotary), site.resolve(spec.attention)
    q_norm = site.resolve(spec.q_norm) if spec.q_norm else None
    k_norm = site.resolve(spec.k_norm) if spec.k_norm else None
    heads, kv_heads, dim = spec.attention.heads, spec.attention.kv_heads, spec.attention.key_dim
    turned, entry, total = heads + kv_heads, heads * dim, heads + 2 * kv_heads

    def attend_fused(qkv: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        split = qkv.view(-1, total, dim)
        if q_norm is not None:
            split[:, :heads] = q_norm(split[:, :heads])
        if k_norm is not None:
            split[:, heads:turned] = k_norm(split[:, heads:turned])
        rotate(split[:, :turned], positions, ctx)
        return attend(split[:, :heads], qkv[:, entry:], ctx)  # type: ignore[no-any-return]

    return attend_fused
