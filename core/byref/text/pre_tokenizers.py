"""How byte-level vocabularies cut text before merging, by the names GGUF files use. Knows no file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class Style:
    """One family of byte-level tokenizers."""

    pre_tokenizer: Callable[[], PreTokenizer]
    normalizer: Callable[[], Normalizer] | None = None
    whole_words: bool = False
    """A word that is in the vocabulary is one token, whatever the merges say."""
    begins: bool = False
    """A text begins with the begin-of-text token unless the file says otherwise."""


def _plain() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _plain()])


def _split(digits: str) -> Callable[[], PreTokenizer]:
    """Words, contractions, and runs of digits as the pattern `digits` cuts them."""

    def build() -> PreTokenizer:
        pattern = Regex(rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_REST}")
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return build


_LLAMA3 = Style(_split(r"\p{N}{1,3}"), whole_words=True, begins=True)
_QWEN2 = Style(_split(r"\p{N}"), normalizer=normalizers.NFC)

STYLES: dict[str, Style] = {
    "gpt-2": Style(_plain),
    "smollm": Style(_single_digits),
    "starcoder": Style(_single_digits),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
