"""DeepSeek-V3 and V3.2 in plain torch, state dict under published names. Knows the forward, not the training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from train.attention import LatentAttention
from train.data import BOS, EOS, VOCABULARY
from train.layers import Chain, Mlp, Norm

BALANCE = 1e-3
"""How far one training forward moves the bias of an expert that got more or less than its share."""


def config(*, sparse: bool, **changes: Any) -> Any:
    """The transformers configuration: about three million parameters, of which half answer a token."""
    from transformers import DeepseekV3Config, DeepseekV32Config

    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 96, "kv_lora_rank": 64}
    widths = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 48, "max_position_embeddings": 4096}
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 96}
    groups = {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.5}
    rest = {"first_k_dense_replace": 1, "rms_norm_eps": 1e-6, "bos_token_id": BOS, "eos_token_id": EOS}
    index = {"index_n_heads": 16, "index_head_dim": 32, "index_topk": 64} if sparse else {"rope_interleave": True}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "num_nextn_predict_layers": 1}
    kind = DeepseekV32Config if sparse else DeepseekV3Config
    return kind(**(sizes | heads | widths | experts | groups | rest | index | rope | changes))


class Gate(nn.Module):
    """Sigmoid scores; groups of experts, then experts, are chosen with a bias that keeps their shares even."""

    e_score_correction_bias: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.groups, self.kept, self.count = config.n_group, config.topk_group, config.num_experts_per_tok
        self.scale = config.routed_scaling_factor
        self.weight = nn.Parameter(torch.randn(config.n_routed_experts, config.hidden_size) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [rows, hidden] -> weights and ids of the chosen experts [rows, count]."""
        with torch.autocast("cpu", enabled=False):
            scores = linear(x.float(), self.weight.float()).sigmoid()
        biased = (scores + self.e_score_correction_bias).unflatten(-1, (self.groups, -1))
        strength = biased.topk(2, dim=-1).values.sum(-1)
        shut = torch.ones_like(strength, dtype=torch.bool).scatter(-1, strength.topk(self.kept).indices, value=False)
        chosen = biased.masked_fill(shut[..., None], float("-inf")).flatten(1).topk(self.count).indices
        if self.training:
            self._balance(chosen)
        weights = scores.gather(1, chosen)
        return weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scale, chosen

    @torch.no_grad()
    def _balance(self, chosen: Tensor) -> None:
        shares = torch.bincount(chosen.flatten(), minlength=len(self.weight)).float()
        self.e_score_correction_bias += BALANCE * (shares.mean() - shares).sign()


class Experts(nn.Module):
    """Routed experts and those that every row passes."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.moe_intermediate_size
        self.gate = Gate(config)
        self.experts = nn.ModuleList(Mlp(config.hidden_size, width) for _ in range(config.n_routed_experts))
        self.shared_experts = Mlp(config.hidden_size, width * config.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        weights, chosen = self.gate(rows)
        mixed = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            row, place = (chosen == i).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, row, (expert(rows[row]) * weights[row, place, None]).to(mixed.dtype))
        return mixed.view_as(x) + self.shared_experts(x)


class Layer(nn.Module):
    """One decoder layer; `i` says whether its block is dense or has experts."""

    def __init__(self, config: Any, i: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = LatentAttention(config, indexed=hasattr(config, "index_topk"))
        dense = i < config.first_k_dense_replace
        self.mlp = Mlp(hidden, config.intermediate_size) if dense else Experts(config)
        self.input_layernorm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)

    def forward(self, x: Tensor, positions: Tensor, chain: Chain) -> Tensor:
        """x [batch, rows, hidden] at positions [rows] or [batch, rows]."""
        x = x + self.self_attn(self.input_layernorm(x), positions, chain)
        return x + self.mlp(self.post_attention_layernorm(x))


class DeepSeek(nn.Module):
    """The target. Its state dict holds the published names without the leading `model.` and `lm_head` as `head`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.apply(_small)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """tokens [batch, rows] -> the last hidden states after the norm, and the logits."""
        x = self.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1]) if positions is None else positions
        for layer in self.layers:
            x = layer(x, positions, Chain())
        x = self.norm(x)
        return x, self.head(x)


def _small(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def gapped(length: int, rows: int, reach: int, draw: torch.Generator) -> Tensor:
    """Positions [rows, length] of which half have one gap, so that distances up to `reach` are seen in training."""
    at = torch.randint(length, (rows, 1), generator=draw)
    gap = torch.randint(reach - length, (rows, 1), generator=draw) * torch.randint(2, (rows, 1), generator=draw)
    places = torch.arange(length).expand(rows, length)
    return places + gap * (places >= at)
