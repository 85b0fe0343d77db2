"""Small vocabularies, trained here on a few lines of text by the `tokenizers` library."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs.",
    "Ünïcödé wörds, naïve café — and 東京 日本語 текст 🦊🇯🇵 👩‍👩‍👧",
    "def f(x):\n    return x + 1\r\n\n\n\t# 2,000.50 it's WE'LL  spaces   \n",
    "  leading and trailing  ",
    "e\u0301 combined, ﬁ ligature, \uff12\uff13 wide digits, ½ and ²",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def reference_pre_tokenizer(style):
    """What the models' own tokenizer.json say, written down again."""
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    patterns = {"llama-bpe": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}
    if style in patterns:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(patterns[style]), "isolated"), raw])
    if style == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    return plain


def trained(style):
    """A byte-level tokenizer as a model of that family has it."""
    backend = Tokenizer(models.BPE(ignore_merges=style == "llama-bpe"))
    backend.pre_tokenizer = reference_pre_tokenizer(style)
    if style == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    return backend


def metadata_of(backend, style, **changes):
    """The same tokenizer as the metadata of a GGUF file."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    keys = {
        "model": "gpt2",
        "pre": style,
        "tokens": tokens,
        "token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    found = {f"tokenizer.ggml.{key}": value for key, value in (keys | changes).items() if value is not None}
    return found | {"tokenizer.chat_template": TEMPLATE}


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'refused' %}{{ raise_exception('no such role') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tools():
    """The functions above for test modules, which cannot import this file."""
    return SimpleNamespace(trained=trained, metadata_of=metadata_of, texts=TEXTS, template=TEMPLATE, special=SPECIAL)


@pytest.fixture(scope="session")
def smollm2():
    """The real tokenizer, where the model has been pulled."""
    from byref.contract.errors import ModelError
    from byref.loading import open_checkpoint

    try:
        return open_checkpoint("smollm2").tokenizer()
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")
