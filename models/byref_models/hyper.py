"""Hyper-connections: several residual streams, mixed by what they hold (Xie et al. 2026). Knows weights; no layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from byref.contract.specs import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.model import Ask


def unit(x: Tensor, eps: float) -> Tensor:
    """x over the root of its mean square along the last dimension: RMSNorm without a weight."""
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)


class _Mixer:
    """A projection of all streams together, in fp32."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, names: tuple[str, str, str], outputs: int) -> None:
        self._eps, self._norm_eps, self.streams = config.hc_eps, config.rms_norm_eps, config.hc_mult
        shapes = ((outputs, self.streams * config.hidden_size), (outputs,), (3 if outputs > self.streams else 1,))
        for attribute, name, shape in zip(("weight", "base", "scale"), names, shapes, strict=True):
            spec = TensorSpec(role=ask.role, layer=i, name=name, shape=shape, dtype=torch.float32)
            setattr(self, attribute, ask(self, attribute, spec))

    def _mix(self, x: Tensor) -> Tensor:
        flat = unit(x.flatten(-2).float(), self._norm_eps)
        return functional.linear(flat, self.weight())  # type: ignore[attr-defined]


class HyperConnection(_Mixer):
    """What a half of a layer takes from the streams, and how its result goes back into them.

    Source: the published inference code of DeepSeek-V4; `comb` is made doubly stochastic by turns of column and row
    norms, columns first.
    """

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, name: str) -> None:
        n = config.hc_mult
        super().__init__(config, ask, i, (f"{name}.fn", f"{name}.base", f"{name}.scale"), (2 + n) * n)
        self._turns: int = config.hc_sinkhorn_iters

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [rows, streams, width] -> the half's input [rows, width], `post` [rows, streams], `comb` [rows, s, s]."""
        n, eps = self.streams, self._eps
        sizes = [n, n, n * n]
        pre, post, comb = self._mix(x).split(sizes, -1)
        bases, scales = self.base().split(sizes), self.scale().unbind()  # type: ignore[attr-defined]
        pre = torch.sigmoid(pre * scales[0] + bases[0]) + eps
        post = 2 * torch.sigmoid(post * scales[1] + bases[1])
        comb = (comb * scales[2] + bases[2]).unflatten(-1, (n, n)).softmax(-1) + eps
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
        for _ in range(self._turns - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + eps)
            comb = comb / (comb.sum(-2, keepdim=True) + eps)
        return (pre.unsqueeze(-1) * x).sum(1).to(x.dtype), post.to(x.dtype), comb.to(x.dtype)

    @staticmethod
    def join(out: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        """The streams after the half: `post` of its result [rows, width], and the streams mixed by `comb`'s columns."""
        return torch.baddbmm(post.unsqueeze(-1) * out.unsqueeze(1), comb.transpose(1, 2), x)


class StreamHead(_Mixer):
    """The streams as one, after the last layer."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, name: str) -> None:
        super().__init__(config, ask, i, (f"{name}.hc_fn", f"{name}.hc_base", f"{name}.hc_scale"), config.hc_mult)

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, streams, width] -> [rows, width]."""
        mixed = self._mix(x) * self.scale() + self.base()  # type: ignore[attr-defined]
        one: Tensor = ((torch.sigmoid(mixed) + self._eps).unsqueeze(-1) * x).sum(1)
        return one.to(x.dtype)
