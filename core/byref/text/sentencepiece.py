"""SentencePiece vocabularies with byte fallback, as GGUF files carry them for Llama 2. Knows no file."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Kind(enum.IntEnum):
    """What `tokenizer.ggml.token_type` says of a token, as far as it matters here."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4


def build(fields: Mapping[str, Any]) -> Backend:
    """The tokenizer of `tokenizer.ggml.*` fields, without special tokens.

    The file has no merges: a pair may merge when the whole is a token, the likelier the earlier.
    """
    from transformers.tokenization_utils_base import generate_merges

    tokens, kinds = fields["tokens"], fields["token_type"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores = dict(zip(tokens, fields["scores"], strict=True))
    apart = {token for token, kind in zip(tokens, kinds, strict=True) if kind != Kind.NORMAL}
    unknown = tokens[fields["unknown_token_id"]] if "unknown_token_id" in fields else None
    merges = generate_merges(vocabulary, scores, apart)
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    begins = bool(fields.get("add_space_prefix", True))
    spaces = normalizers.Replace(" ", _SPACE)
    # Not Metaspace: that leaves the first space out where the text begins with one already.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if begins else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if begins else steps)
    return backend
