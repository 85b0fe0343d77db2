"""From dense to sparse: indexers that learn what the attention looks at, then all that learns with their selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from train.attention import Indexer, LatentAttention
from train.deepseek import DeepSeek, config, gapped
from train.heads import divergence, train_mtp
from train.loop import Stage, optimise
from train.mtp import Mtp
from train.target import LONGEST, next_token_loss

if TYPE_CHECKING:
    from train.data import Text


@dataclass(frozen=True)
class Stages:
    """Of each part: indexers alone, all of the target with them, the module's indexer, all of the module."""

    warm: Stage
    sparse: Stage
    module_warm: Stage
    module: Stage


def switch(model: nn.Module, *, learning: bool, dense: bool = False) -> None:
    """Whether the indexers of `model` learn, and whether its attention is dense nevertheless."""
    for part in model.modules():
        if isinstance(part, LatentAttention):
            part.learning, part.dense = learning, dense


def indexers(model: nn.Module) -> list[nn.Parameter]:
    """Parameters of every indexer."""
    return [weight for part in model.modules() if isinstance(part, Indexer) for weight in part.parameters()]


def widened(target: DeepSeek, module: Mtp) -> tuple[DeepSeek, Mtp]:
    """Both with random indexers and the weights they had."""
    torch.manual_seed(0)
    sparse = DeepSeek(config(sparse=True))
    follower = Mtp(sparse)
    for new, old in ((sparse, target), (follower, module)):
        left = new.load_state_dict(old.state_dict(), strict=False)
        assert not left.unexpected_keys
        assert all(".indexer." in name for name in left.missing_keys)
    return sparse, follower


def train_target(model: DeepSeek, text: Text, stages: Stages) -> None:
    """Warm the indexers up beside the frozen dense target, then train all with the selection on."""
    draw = torch.Generator().manual_seed(4)

    def loss(tokens: Tensor) -> Tensor:
        rows, length = tokens.shape
        logits = model(tokens, gapped(length, rows, LONGEST * length, draw))[1]
        own = divergence(model)
        return own if model.layers[0].self_attn.dense else own + next_token_loss(logits, tokens)

    model.requires_grad_(False).eval()
    for weight in indexers(model):
        weight.requires_grad_(True)
    switch(model, learning=True, dense=True)
    optimise(indexers(model), text, 5, stages.warm, loss, 3e-3, "indexer")
    model.requires_grad_(True).train()
    switch(model, learning=True)
    optimise(model.parameters(), text, 6, stages.sparse, loss, 1e-3, "sparse")
    switch(model.eval(), learning=False)


def train_module(module: Mtp, target: DeepSeek, text: Text, stages: Stages) -> None:
    """The same for the next-token module, whose target is frozen by now."""
    module.requires_grad_(False)
    for weight in indexers(module):
        weight.requires_grad_(True)
    switch(module, learning=True, dense=True)
    train_mtp(module, target, text, stages.module_warm, 3e-3)
    module.requires_grad_(True).train()
    switch(module, learning=True)
    train_mtp(module, target, text, stages.module, 1e-3)
    switch(module.eval(), learning=False)


def train_sparse(target: DeepSeek, module: Mtp, text: Text, stages: Stages) -> tuple[DeepSeek, Mtp]:
    """A V3.2 and its module out of a dense V3 and its module."""
    sparse, follower = widened(target, module)
    train_target(sparse, text, stages)
    train_module(follower, sparse, text, stages)
    return sparse, follower
