"""Byte-level vocabularies as GGUF files carry them. Knows the pre-tokenizers' names, no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from byref.text.pre_tokenizers import Style


def build(fields: Mapping[str, Any], style: Style) -> Backend:
    """The tokenizer of `tokenizer.ggml.*` fields, without special tokens."""
    vocabulary = {token: i for i, token in enumerate(fields["tokens"])}
    merges = [_pair(merge) for merge in fields["merges"]]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=style.whole_words))
    backend.pre_tokenizer = style.pre_tokenizer()
    if style.normalizer:
        backend.normalizer = style.normalizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
