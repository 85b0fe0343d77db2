"""How the drafting heads are trained: to follow their frozen target. Knows the heads' beginnings, not their forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from train.data import Text
from train.eagle import AUX_LAYERS, DRAFT_VOCABULARY, Eagle3, draft_vocabulary, head_config
from train.loop import Stage, optimise
from train.mtp import Mtp
from train.target import hiddens
from train.unroll import distil

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from train.deepseek import DeepSeek


def new_eagle(target: LlamaForCausalLM, text: Text) -> Eagle3:
    """A random head for `target` whose draft vocabulary is the likeliest part of the text's."""
    torch.manual_seed(0)
    head = Eagle3(head_config(target.config), target.model.embed_tokens)
    head.d2t, head.t2d = draft_vocabulary(text.train, target.config.vocab_size, DRAFT_VOCABULARY)
    return head


def train_eagle(target: LlamaForCausalLM, text: Text, stage: Stage) -> Eagle3:
    """A head that has followed `target` over the windows of `stage`."""
    head = new_eagle(target.requires_grad_(False), text)

    def loss(tokens: Tensor) -> Tensor:
        taps, teacher = hiddens(target, tokens, AUX_LAYERS)
        return distil(head, taps, tokens, teacher)

    optimise(head.parameters(), text, 3, stage, loss, 2e-3, "eagle")
    return head.eval()


def new_mtp(target: DeepSeek) -> Mtp:
    """A random module for `target`, whose layer starts as the target's last one."""
    torch.manual_seed(0)
    module = Mtp(target)
    module.block.load_state_dict(target.layers[-1].state_dict())
    torch.nn.init.normal_(module.eh_proj.weight, std=0.02)
    return module


def train_mtp(module: Mtp, target: DeepSeek, text: Text, stage: Stage, rate: float = 2e-3) -> Mtp:
    """`module` after it has followed `target` over the windows of `stage`."""
    target.requires_grad_(False).eval()

    def loss(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            taps, teacher = target(tokens)
        return distil(module, taps, tokens, teacher) + divergence(module)

    optimise(module.parameters(), text, 3, stage, loss, rate, "mtp")
    return module.eval()


def divergence(module: torch.nn.Module) -> Tensor:
    """What the indexers of `module` have left of their own loss; 0 where none is learning."""
    from train.attention import LatentAttention

    found = [part.divergence for part in module.modules() if isinstance(part, LatentAttention) and part.learning]
    return torch.stack(found).sum() if found else torch.zeros(())
