"""The next-token module (MTP) in plain torch, under published names. Knows its forward, not its training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.deepseek import DeepSeek, Layer
from train.layers import Chain, Norm


class Mtp(nn.Module):
    """Drafts from the target's normed hidden states; embedding and vocabulary projection are the target's.

    Its steps after the first read its own normed output.
    """

    def __init__(self, target: DeepSeek) -> None:
        super().__init__()
        hidden, eps = target.config.hidden_size, target.config.rms_norm_eps
        self.enorm = Norm(hidden, eps)
        self.hnorm = Norm(hidden, eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.block = Layer(target.config, target.config.num_hidden_layers)
        self.norm = Norm(hidden, eps)
        self._shared = (target.embed_tokens, target.head)  # in a tuple, so that they are no parameters of the module

    def begin(self, taps: Tensor) -> Tensor:
        """The target's normed hidden states [batch, rows, hidden], as they are."""
        return taps

    def forward(self, hidden: Tensor, tokens: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        """One step: hidden [batch, rows, hidden], the token after each -> the next step's hidden, logits."""
        embed, head = self._shared
        x = self.eh_proj(torch.cat([self.enorm(embed(tokens)), self.hnorm(hidden)], dim=-1))
        x = self.norm(self.block(x, torch.arange(tokens.shape[1]) + chain.steps, chain))
        return x, head(x)

    def choose(self, teacher: Tensor) -> Tensor:
        """The target's logits: the module drafts every id."""
        return teacher

    def ids(self, logits: Tensor) -> Tensor:
        """Each row's likeliest token."""
        return logits.argmax(dim=-1)
