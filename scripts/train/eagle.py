"""The EAGLE-3 head in plain torch, under its published names. Knows its forward; must not know how it is trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from train.layers import Chain, Mlp, Norm, angles, chained_scores, chained_values, rotate_halves

AUX_LAYERS = (1, 2, 4)
"""The layers of the target whose inputs are tapped: low, middle, high."""
DRAFT_VOCABULARY = 96


def head_config(target: Any) -> dict[str, Any]:
    """The head's config.json for a target's configuration: one layer of its sizes."""
    same = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    more = ("max_position_embeddings", "rms_norm_eps", "hidden_act", "bos_token_id", "eos_token_id")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        **{name: getattr(target, name) for name in (*same, *more)},
        "rope_theta": target.rope_parameters["rope_theta"],
        "target_hidden_size": target.hidden_size,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
        "norm_before_residual": False,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


class WideAttention(nn.Module):
    """Self attention over rows twice as wide as what it returns."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.width, self.theta = config["head_dim"], config["rope_theta"]
        self.heads, self.groups = config["num_attention_heads"], config["num_key_value_heads"]
        wide = 2 * config["hidden_size"]
        self.q_proj = nn.Linear(wide, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(wide, self.groups * self.width, bias=False)
        self.v_proj = nn.Linear(wide, self.groups * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, config["hidden_size"], bias=False)

    def _split(self, x: Tensor) -> Tensor:
        """[batch, rows, heads * width] -> [batch, query heads, rows, width], shared heads repeated."""
        x = x.unflatten(-1, (-1, self.width)).transpose(1, 2)
        return x.repeat_interleave(self.heads // x.shape[1], dim=1)

    def forward(self, x: Tensor, chain: Chain) -> Tensor:
        """x [batch, rows, 2 * hidden] -> [batch, rows, hidden]; leaves its keys and values in `chain`."""
        angle = angles(torch.arange(x.shape[1]) + chain.steps, self.width, self.theta)
        query = rotate_halves(self._split(self.q_proj(x)), angle)
        chain.keys.append(rotate_halves(self._split(self.k_proj(x)), angle))
        chain.values.append(self._split(self.v_proj(x)))
        weights = (chained_scores(query, chain.keys) * self.width**-0.5).softmax(dim=-1)
        return self.o_proj(chained_values(weights, chain.values).transpose(1, 2).flatten(2))


class MiddleLayer(nn.Module):
    """The head's one layer: the next token's embedding and a hidden state go in side by side."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = WideAttention(config)
        self.mlp = Mlp(hidden, config["intermediate_size"])
        self.hidden_norm = Norm(hidden, eps)
        self.input_layernorm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)

    def forward(self, embedded: Tensor, hidden: Tensor, chain: Chain) -> Tensor:
        wide = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.self_attn(wide, chain)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3(nn.Module):
    """Drafts from the target's tapped hidden states and embedding; its logits are over the draft vocabulary."""

    d2t: Tensor
    """[draft vocabulary] int64: what is added to a draft id to make it the target's."""
    t2d: Tensor
    """[vocabulary] bool: the target's ids that the head can draft."""

    def __init__(self, config: dict[str, Any], embedding: nn.Embedding) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.fc = nn.Linear(len(config["eagle_aux_hidden_state_layer_ids"]) * hidden, hidden, bias=False)
        self.midlayer = MiddleLayer(config)
        self.norm = Norm(hidden, config["rms_norm_eps"])
        self.lm_head = nn.Linear(hidden, config["draft_vocab_size"], bias=False)
        self.register_buffer("d2t", torch.zeros(config["draft_vocab_size"], dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(config["vocab_size"], dtype=torch.bool))
        self._embed = (embedding,)  # the target's: in a tuple, so that it is no parameter of the head

    def begin(self, taps: Tensor) -> Tensor:
        """The first step's hidden state of the taps [batch, rows, 3 * hidden]."""
        return self.fc(taps)

    def forward(self, hidden: Tensor, tokens: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        """One step: hidden [batch, rows, hidden], the token after each -> the next step's hidden, logits."""
        hidden = self.midlayer(self._embed[0](tokens), hidden, chain)
        return hidden, self.lm_head(self.norm(hidden))

    def choose(self, teacher: Tensor) -> Tensor:
        """The target's logits [..., vocabulary] at the ids that the head can draft, in their order."""
        return teacher[..., self.t2d]

    def ids(self, logits: Tensor) -> Tensor:
        """The target's id of each row's likeliest token."""
        best = logits.argmax(dim=-1)
        return best + self.d2t[best]


def draft_vocabulary(tokens: Tensor, size: int, count: int) -> tuple[Tensor, Tensor]:
    """d2t and t2d of the `count` likeliest of `size` ids in `tokens`."""
    counts = torch.bincount(tokens.long(), minlength=size)
    chosen = counts.argsort(descending=True, stable=True)[:count].sort().values
    t2d = torch.zeros(size, dtype=torch.bool)
    t2d[chosen] = True
    return chosen - torch.arange(count), t2d
