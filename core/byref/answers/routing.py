"""Which experts a row goes to, and with what weight. Knows scores and groups; computes no expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from byref.contract.roles import Site
from byref.contract.specs import MoESpec

TINY: Final = 1e-20
"""Keeps the sum of weights that are all zero from dividing by zero."""


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def _sqrt_softplus(logits: Tensor) -> Tensor:
    return functional.softplus(logits).sqrt()


SCORES: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "softmax": _softmax,
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": _sqrt_softplus,
}


class Router:
    """Scores, choice and weights of one mixture."""

    def __init__(self, spec: MoESpec, site: Site) -> None:
        self._spec, self._score = spec, SCORES[spec.score]
        self._logits = site.resolve(spec.router)
        self._correction: Tensor | None = None
        if spec.correction is not None:
            self._correction = site.parameters.load([spec.correction], (spec.experts,), torch.float32)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights in the dtype of x and numbers of the chosen experts, both [rows, top_k]."""
        scores = self._score(self._logits(x).float())
        chosen = self._choose(scores)
        return self._weigh(scores, chosen, x.dtype), chosen

    def weigh(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Weights [rows, top_k] of experts that somebody else chose."""
        return self._weigh(self._score(self._logits(x).float()), chosen, x.dtype)

    def _choose(self, scores: Tensor) -> Tensor:
        spec = self._spec
        best = scores if self._correction is None else scores + self._correction
        if spec.groups > 1:
            best = self._of_top_groups(best)
        chosen: Tensor = best.topk(spec.top_k).indices
        return chosen

    def _of_top_groups(self, best: Tensor) -> Tensor:
        """Experts of other groups fall out of the choice."""
        grouped: Tensor = best.unflatten(-1, (self._spec.groups, -1))
        groups = grouped.topk(2).values.sum(-1).topk(self._spec.top_groups).indices
        kept = torch.zeros_like(grouped[..., 0]).scatter_(-1, groups, 1.0)
        return grouped.masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).flatten(-2)

    def _weigh(self, scores: Tensor, chosen: Tensor, dtype: torch.dtype) -> Tensor:
        weights = scores.gather(-1, chosen)
        if self._spec.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + TINY)
        if self._spec.scale != 1.0:
            weights = weights * self._spec.scale
        return weights.to(dtype)
