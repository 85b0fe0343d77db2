"""Mixtures of experts: grouped products over rows sorted by expert. Knows weights; not who chose the experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from byref.answers.coarse import gate
from byref.answers.linear import linear_of
from byref.answers.routing import Router
from byref.contract.calls import Mix
from byref.contract.roles import Site
from byref.contract.specs import HashMoESpec, MoESpec, Part

Products = Callable[[Tensor, Tensor], Tensor]
"""rows [n, inputs] sorted by expert, ends of the experts' rows [experts] int32 -> [n, outputs]."""


class SortedExperts:
    """Sorts the chosen (row, expert) pairs by expert, so that each expert is one product over adjacent rows."""

    def __init__(self, spec: MoESpec, site: Site, gate_up: Products, down: Products, capturable: bool) -> None:
        self.capturable = capturable
        self._gate_up, self._down, self._gate = gate_up, down, gate(spec.activation, spec.inner, spec.limit)
        self._top_k = spec.top_k
        self._norm = site.resolve(spec.norm) if spec.norm else None
        self._shared = site.resolve(spec.shared) if spec.shared else None
        self.router = Router(spec, site)
        self._experts = torch.arange(spec.experts, device=site.sizing.device)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = x if self._norm is None else self._norm(x)
        return self._mix(x, *self.router(x), residual)

    def chosen(self, x: Tensor, chosen: Tensor, residual: Tensor | None = None) -> Tensor:
        """The same with experts [rows, top_k] that somebody else chose."""
        x = x if self._norm is None else self._norm(x)
        return self._mix(x, self.router.weigh(x, chosen), chosen, residual)

    def _mix(self, x: Tensor, weights: Tensor, chosen: Tensor, residual: Tensor | None) -> Tensor:
        if self._shared is not None:
            residual = self._shared(x, residual)
        by_expert, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(by_expert, self._experts, right=True, out_int32=True)
        both = self._gate_up(x.index_select(0, order // self._top_k), ends)
        sorted_out = self._down(self._gate(both), ends)
        out = torch.empty_like(sorted_out).index_copy_(0, order, sorted_out).view(*chosen.shape, -1)
        y = torch.bmm(weights.unsqueeze(1), out).squeeze(1)
        return y if residual is None else y.add_(residual)


def grouped(parts: Sequence[Sequence[Part]], inputs: int, site: Site) -> Products:
    """One operator for all experts; `parts` of each are stacked."""
    names, rows = [part.name for each in parts for part in each], sum(part.rows for part in parts[0])
    weights = site.parameters.load(names, (len(parts) * rows, inputs)).unflatten(0, (len(parts), rows)).transpose(1, 2)

    def products(x: Tensor, ends: Tensor) -> Tensor:
        return functional.grouped_mm(x, weights, offs=ends)

    return products


def looped(parts: Sequence[Sequence[Part]], inputs: int, site: Site) -> Products:
    """A product per expert that has rows; reads on the host which have."""
    rows = sum(part.rows for part in parts[0])
    experts = [linear_of(site.parameters.load([part.name for part in each], (rows, inputs))) for each in parts]

    def products(x: Tensor, ends: Tensor) -> Tensor:
        out, start = x.new_empty(len(x), rows), 0
        for expert, end in zip(experts, ends.tolist(), strict=True):
            if end > start:
                out[start:end] = expert(x[start:end])
            start = end
        return out

    return products


def groups(site: Site) -> bool:
    """Whether one operator takes all experts here, and is worth it.

    On a CPU a loop over packed weights is up to twice as fast, so the operator serves captures only.
    """
    device, dtype = site.sizing.device, site.sizing.dtype
    if not hasattr(functional, "grouped_mm"):
        return False
    if device.type == "cuda":  # elsewhere and otherwise the operator reads the ends on the host itself
        return dtype is torch.bfloat16 and torch.cuda.get_device_capability(device) >= (9, 0)
    return device.type == "cpu" and bool(site.sizing.captured)


def answer_moe(spec: MoESpec, site: Site) -> SortedExperts:
    """The grouped operator where there is one that gains, else a loop, which cannot be captured."""
    one = groups(site)
    products = grouped if one else looped
    gate_up = products(list(zip(spec.gate, spec.up, strict=True)), spec.inputs, site)
    down = products([(part,) for part in spec.down], spec.inner, site)
    return SortedExperts(spec, site, gate_up, down, capturable=one)


class HashedExperts:
    """Looks the experts of each token up, and leaves the rest to the mixture."""

    def __init__(self, spec: HashMoESpec, site: Site) -> None:
        self._moe = answer_moe(spec.moe, site)
        self._table = site.parameters.load([spec.table], (spec.vocabulary, spec.moe.top_k), torch.int64)
        self.capturable = self._moe.capturable

    def __call__(self, x: Tensor, ids: Tensor, residual: Tensor | None = None) -> Tensor:
        return self._moe.chosen(x, self._table.index_select(0, ids), residual)


def answer_hash_moe(spec: HashMoESpec, site: Site) -> Mix:
    """See `HashedExperts`."""
    return HashedExperts(spec, site)
