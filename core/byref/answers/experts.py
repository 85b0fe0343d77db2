"""Mixtures of experts: routing, and grouped products over rows sorted by expert. Knows weights; no requests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from byref.answers.coarse import ACTIVATIONS
from byref.contract.roles import Site
from byref.contract.specs import MoESpec, Project

Products = Callable[[Tensor, Tensor, Tensor], Tensor]
"""rows [n, inputs] sorted by expert, weights [experts, outputs, inputs], ends [experts] int32 -> [n, outputs]."""


class SortedExperts:
    """Sorts the chosen (row, expert) pairs by expert, so that each expert is one product over adjacent rows."""

    def __init__(self, spec: MoESpec, site: Site, products: Products, capturable: bool) -> None:
        self.capturable = capturable
        self._products, self._activate = products, ACTIVATIONS[spec.activation]
        self._top_k, self._inner, self._renormalise = spec.top_k, spec.inner, spec.renormalise
        self._norm = site.resolve(spec.norm) if spec.norm else None
        self._router = site.resolve(spec.router)
        self.gate_up, self.down = load_experts(spec, site)
        self._experts = torch.arange(spec.experts, device=self.down.device)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = x if self._norm is None else self._norm(x)
        weights, chosen = self._route(x)
        by_expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(by_expert, self._experts, right=True, out_int32=True)
        both = self._products(x.index_select(0, order // self._top_k), self.gate_up, ends)
        inner = self._activate(both[:, : self._inner]).mul_(both[:, self._inner :])
        sorted_out = self._products(inner, self.down, ends)
        out = torch.empty_like(sorted_out).index_copy_(0, order, sorted_out).view(*chosen.shape, -1)
        y = torch.bmm(weights.unsqueeze(1), out).squeeze(1)
        return y if residual is None else y.add_(residual)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights in the dtype of x and numbers of the chosen experts, both [rows, top_k]."""
        weights, chosen = self._router(x).float().softmax(-1).topk(self._top_k)
        if self._renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen


def load_experts(spec: MoESpec, site: Site) -> tuple[Tensor, Tensor]:
    """gate_up [experts, 2 * inner, inputs] and down [experts, inputs, inner]."""
    pairs = [part.name for both in zip(spec.gate, spec.up, strict=True) for part in both]
    gate_up = site.parameters.load(pairs, (2 * spec.experts * spec.inner, spec.inputs))
    down = site.parameters.load([part.name for part in spec.down], (spec.experts * spec.inputs, spec.inner))
    return gate_up.unflatten(0, (spec.experts, -1)), down.unflatten(0, (spec.experts, -1))


def grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """One operator for all experts."""
    return functional.grouped_mm(rows, weights.transpose(1, 2), offs=ends)  # type: ignore[no-any-return]


def looped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """A product per expert that has rows; reads on the host which have."""
    out = rows.new_empty(len(rows), weights.shape[1])
    start = 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        if end > start:
            out[start:end] = functional.linear(rows[start:end], weight)
        start = end
    return out


def groups(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether one operator takes all experts here without reading their numbers of rows on the host."""
    if not hasattr(functional, "grouped_mm"):
        return False
    if device.type == "cuda":
        return dtype is torch.bfloat16 and torch.cuda.get_device_capability(device) >= (9, 0)
    return device.type == "cpu"


def answer_moe(spec: MoESpec, site: Site) -> Project:
    """The grouped operator where there is one, else a loop, which cannot be captured."""
    one = groups(site.sizing.device, site.sizing.dtype)
    return SortedExperts(spec, site, grouped if one else looped, capturable=one)
