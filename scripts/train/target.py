"""The targets of drafts: how they are trained and tapped. Knows no head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from train.data import BOS, EOS, VOCABULARY, Text
from train.deepseek import DeepSeek, config, gapped
from train.loop import Stage, optimise

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM


def llama(**changes: Any) -> LlamaForCausalLM:
    """A random Llama of about two million parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 5, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48, "max_position_embeddings": 1024}
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": None}
    rest = {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    model = LlamaForCausalLM(LlamaConfig(**(sizes | heads | ids | rest | changes)))
    model.set_attn_implementation("eager")  # the fastest to train on a CPU at these lengths
    return model


def train_llama(text: Text, stage: Stage) -> LlamaForCausalLM:
    """A Llama that has read the windows of `stage`."""
    torch.manual_seed(0)
    model = llama()

    def loss(tokens: Tensor) -> Tensor:
        return next_token_loss(model(input_ids=tokens, use_cache=False).logits, tokens)

    optimise(model.parameters(), text, 1, stage, loss, 3e-3, "llama")
    return model.eval()


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy, in nats, of logits [rows, length, vocabulary] at each token's successor."""
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


LONGEST = 4
"""How many times the training length positions reach."""


def train_deepseek(text: Text, stage: Stage) -> DeepSeek:
    """A dense DeepSeek-V3 that has read the windows of `stage`."""
    torch.manual_seed(0)
    model, draw = DeepSeek(config(sparse=False)), torch.Generator().manual_seed(2)

    def loss(tokens: Tensor) -> Tensor:
        return next_token_loss(model(tokens, gapped(stage.length, stage.rows, LONGEST * stage.length, draw))[1], tokens)

    optimise(model.parameters(), text, 1, stage, loss, 3e-3, "deepseek")
    return model.eval()


@torch.no_grad()
def hiddens(model: LlamaForCausalLM, tokens: Tensor, ids: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """What enters the layers `ids`, side by side [rows, length, len(ids) * hidden], and the logits."""
    out = model(input_ids=tokens, output_hidden_states=True, use_cache=False)
    return torch.cat([out.hidden_states[i] for i in ids], dim=-1), out.logits
