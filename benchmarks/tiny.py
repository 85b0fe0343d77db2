"""A random Llama with many layers and next to no arithmetic: what it takes is Python and dispatch."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging


def save_tiny(folder: Path, layers: int) -> Path:
    """Save it as transformers does, over single bytes; the folder."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=len(letters),
        max_position_embeddings=512,
        eos_token_id=None,
        bos_token_id=None,
    )
    logging.disable_progress_bar()
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
