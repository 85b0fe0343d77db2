"""Tiny random checkpoints in the layout of transformers: seeded, saved in seconds, with a tokenizer of their own."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LETTERS = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
PAIRS = [a + b for a in "aeiou" for b in "nrstlmdcpgbk"]
SPECIAL = ("<s>", "</s>", "<turn>", "<pad>")
END = len(LETTERS) + len(PAIRS) + 1
"""The id of `</s>`."""
VOCABULARY = len(LETTERS) + len(PAIRS) + len(SPECIAL)


def byte_level() -> tokenizers.Tokenizer:
    """Every byte, some pairs of letters, and special tokens: 320 ids in all."""
    vocabulary = {token: i for i, token in enumerate([*LETTERS, *PAIRS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [(pair[0], pair[1]) for pair in PAIRS]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def llama_config(**changes) -> LlamaConfig:
    """64 wide, 4 layers, 4 heads that share 2 KV heads."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    ids = {"bos_token_id": None, "eos_token_id": END, "pad_token_id": None, "tie_word_embeddings": True}
    # Wide enough that likeliest tokens stand apart: a model whose logits are all alike would agree with anything.
    return LlamaConfig(**(sizes | heads | ids | {"initializer_range": 0.2} | changes))


def save_llama(folder: Path, seed: int = 0, **changes) -> Path:
    """Save a random Llama with its tokenizer in `folder`; biases and norms are random too."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(**changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    return folder
