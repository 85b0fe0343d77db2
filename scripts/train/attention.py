"""Multi-head latent attention with an optional indexer, under published names. Knows no layer and no model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, relu

from train.layers import (
    HIDDEN,
    Chain,
    Norm,
    angles,
    chained_scores,
    chained_values,
    rotate_halves,
    rotate_pairs,
)


class Indexer(nn.Module):
    """Scores how much each row of the context matters to each row, from detached inputs."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.width, self.turned = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
        self.theta = config.rope_parameters["rope_theta"]
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.width, bias=False)
        self.wk = nn.Linear(config.hidden_size, self.width, bias=False)
        self.k_norm = nn.LayerNorm(self.width, eps=1e-6)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False)

    def _turn(self, x: Tensor, angle: Tensor) -> Tensor:
        return torch.cat([rotate_halves(x[..., : self.turned], angle), x[..., self.turned :]], dim=-1)

    def forward(self, x: Tensor, latent: Tensor, positions: Tensor, chain: Chain) -> Tensor:
        """x [batch, rows, hidden], latent [batch, rows, q_lora] -> scores [batch, rows, context], -inf where hidden."""
        x, latent = x.detach(), latent.detach()
        angle = angles(positions, self.turned, self.theta)
        query = self.wq_b(latent).unflatten(-1, (self.heads, self.width)).transpose(1, 2)
        chain.index_keys.append(self._turn(self.k_norm(self.wk(x)), angle))
        keys = [key[:, None] for key in chain.index_keys]
        products = chained_scores(self._turn(query, angle[..., None, :, :]), keys)
        hidden = products[:, 0].isneginf()
        weights = self.weights_proj(x).float().transpose(1, 2)[..., None] * (self.heads * self.width) ** -0.5
        return (relu(products) * weights).sum(dim=1).masked_fill(hidden, HIDDEN)


def best(scores: Tensor, count: int) -> Tensor:
    """scores [..., context], -inf where hidden -> bool, the `count` best visible; among equals the lowest position."""
    least = scores.topk(min(count, scores.shape[-1])).values[..., -1:]
    above, equal = scores > least, scores == least
    wanted = count - above.sum(-1, keepdim=True)
    return (above | (equal & (equal.cumsum(-1) <= wanted))) & ~scores.isneginf()


class LatentAttention(nn.Module):
    """MLA in its expanded form. With an indexer it attends to the `index_topk` rows of the highest scores.

    Three switches serve training and measuring: `dense` attends to every row though there is an indexer, `shuffled`
    draws the rows by chance instead, and `learning` keeps `divergence`, the indexer's own loss, of the last forward.
    """

    def __init__(self, config: Any, *, indexed: bool) -> None:
        super().__init__()
        self.heads, self.nope, self.turned = (
            config.num_attention_heads,
            config.qk_nope_head_dim,
            config.qk_rope_head_dim,
        )
        self.value, self.latent, self.theta = (
            config.v_head_dim,
            config.kv_lora_rank,
            config.rope_parameters["rope_theta"],
        )
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.q_a_proj = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_a_layernorm = Norm(config.q_lora_rank, eps)
        self.q_b_proj = nn.Linear(config.q_lora_rank, self.heads * (self.nope + self.turned), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, self.latent + self.turned, bias=False)
        self.kv_a_layernorm = Norm(self.latent, eps)
        self.kv_b_proj = nn.Linear(self.latent, self.heads * (self.nope + self.value), bias=False)
        self.o_proj = nn.Linear(self.heads * self.value, hidden, bias=False)
        self.indexer = Indexer(config) if indexed else None
        self.count = config.index_topk if indexed else 0
        self.dense = self.shuffled = self.learning = False
        self.divergence = torch.zeros(())

    def forward(self, x: Tensor, positions: Tensor, chain: Chain) -> Tensor:
        """x [batch, rows, hidden] -> the same; leaves its keys and values in `chain`."""
        angle = angles(positions, self.turned, self.theta)[..., None, :, :]
        latent = self.q_a_layernorm(self.q_a_proj(x))
        query = self.q_b_proj(latent).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        packed, turning = self.kv_a_proj_with_mqa(x).split([self.latent, self.turned], dim=-1)
        pair = self.kv_b_proj(self.kv_a_layernorm(packed)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        turning = rotate_pairs(turning[:, None], angle).expand(-1, self.heads, -1, -1)
        chain.keys.append(torch.cat([pair[..., : self.nope], turning], dim=-1))
        chain.values.append(pair[..., self.nope :])
        query = torch.cat([query[..., : self.nope], rotate_pairs(query[..., self.nope :], angle)], dim=-1)
        scores = chained_scores(query, chain.keys) * (self.nope + self.turned) ** -0.5
        if self.indexer is not None:
            scores = self._selected(scores, self.indexer(x, latent, positions, chain))
        return self.o_proj(chained_values(scores.softmax(dim=-1), chain.values).transpose(1, 2).flatten(2))

    def _selected(self, scores: Tensor, index: Tensor) -> Tensor:
        """Attention scores, hidden where the indexer selects nothing."""
        order = torch.rand_like(index).masked_fill(index.isneginf(), HIDDEN) if self.shuffled else index
        if not self.dense:
            keep = best(order.detach(), self.count)
            scores = scores.masked_fill(~keep[:, None], HIDDEN)
            index = index.masked_fill(~keep, HIDDEN)
        if self.learning:
            self.divergence = _divergence(index, scores)
        return scores


def _divergence(index: Tensor, scores: Tensor) -> Tensor:
    """KL divergence, per row, of the indexer's distribution from the attention's mean over its heads."""
    wanted = scores.detach().softmax(dim=-1).mean(dim=1)
    found = index.log_softmax(dim=-1).masked_fill(index.isneginf(), 0.0)
    return kl_div(found, wanted, reduction="sum") / (index.shape[0] * index.shape[1])
