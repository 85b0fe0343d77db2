"""Tokenizers built from GGUF metadata encode as the ones they were made of."""

from pathlib import Path

import llamacpp
import pytest

from byref.contract.errors import ModelError
from byref.loading import open_checkpoint
from byref.text.from_gguf import tokenizer_from_gguf
from byref.text.pre_tokenizers import STYLES

LICENSE = Path(__file__).resolve().parents[3] / "LICENSE"


@pytest.mark.parametrize("style", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_each_style_encodes_as_its_model(tools, style):
    reference = tools.trained(style)
    found = tokenizer_from_gguf(tools.metadata_of(reference, style, add_bos_token=False), "x.gguf")
    assert found.size == reference.get_vocab_size()
    for text in [*tools.texts, "<|im_start|>user\nhi<|im_end|>\n", ""]:
        ids = found.encode(text)
        assert ids == reference.encode(text).ids, text
        assert found.decode(ids) == reference.decode(ids)


def test_the_styles_differ(tools):
    """The reference must be able to tell them apart, or the test above says nothing."""
    text = " ".join(tools.texts)
    backend = tools.trained("gpt-2")
    cuts = {name: str(style.pre_tokenizer().pre_tokenize_str(text)) for name, style in STYLES.items()}
    assert len({cuts[name] for name in ("gpt-2", "smollm", "llama-bpe", "qwen2")}) == 4
    assert backend.get_vocab_size() > 300


def test_a_word_of_the_vocabulary_is_whole_where_the_model_says_so(tools):
    metadata = tools.metadata_of(tools.trained("gpt-2"), "llama-bpe", add_bos_token=False)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "zqzq"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    assert len(tokenizer_from_gguf(metadata, "x").encode("zqzq")) == 1
    assert len(tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "gpt-2"}, "x").encode("zqzq")) > 1


@pytest.mark.parametrize(
    ("changes", "begin", "end"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [1], []),
        ({"add_eos_token": True}, [], [2]),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
        ({"pre": "llama-bpe"}, [1], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
        ({"add_bos_token": True, "bos_token_id": None}, [], []),
    ],
)
def test_what_surrounds_a_text(tools, changes, begin, end):
    found = tokenizer_from_gguf(tools.metadata_of(tools.trained("gpt-2"), "gpt-2", **changes), "x.gguf")
    plain = found.encode("text", special=False)
    assert found.encode("text") == [*begin, *plain, *end]


def test_control_tokens_are_special_and_added_ones_are_text(tools):
    metadata = tools.metadata_of(tools.trained("gpt-2"), "gpt-2")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<think>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4]
    found = tokenizer_from_gguf(metadata, "x.gguf")
    ids = found.encode("<|im_start|><think>")
    assert ids == [1, found.size - 1]
    assert found.special_ids == {0, 1, 2}
    assert found.decode(ids) == "<think>"


def test_the_special_texts_are_the_template_s(tools):
    found = tokenizer_from_gguf(tools.metadata_of(tools.trained("gpt-2"), "gpt-2"), "x.gguf")
    assert (
        found.chat([{"role": "user", "content": "hi"}], add_generation_prompt=False)
        == "<|im_start|>user\nhi<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"pre": "viking"},
            r"pre-tokenizer 'viking' is unknown\n  in: x\.gguf, field tokenizer\.ggml\.pre\n.*gpt-2.*smollm",
        ),
        ({"pre": None}, "names no pre-tokenizer"),
        ({"model": "t5"}, "of kind 't5'\n.*\n.*gpt2, llama"),
        ({"model": None}, "carries no tokenizer"),
        ({"merges": None}, "lacks merges"),
        ({"tokens": ["a"]}, "cannot be built: .*out of vocabulary"),
        ({"bos_token_id": 10**6}, "cannot be built: .*index out of range"),
    ],
)
def test_what_cannot_be_built(tools, changes, sentence):
    with pytest.raises(ModelError, match=sentence):
        tokenizer_from_gguf(tools.metadata_of(tools.trained("gpt-2"), "gpt-2", **changes), "x.gguf")


@pytest.mark.model
def test_smollm2_cuts_digits_one_by_one(smollm2):
    assert smollm2.size == 49152
    assert smollm2.special_ids == set(range(17))
    digits = smollm2.encode("2024")
    assert [smollm2.decode([i]) for i in digits] == ["2", "0", "2", "4"]
    for text in ("Hello, world! It's 12 o'clock.\n\n\tünï 🦊", "  two  spaces"):
        assert smollm2.decode(smollm2.encode(text)) == text


@pytest.mark.model
def test_smollm2_chats(smollm2):
    text = smollm2.chat([{"role": "user", "content": "hi"}])
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    ids = smollm2.encode(text, special=False)
    assert ids[0] == 1
    assert ids.count(1) == 3


@pytest.mark.model
@pytest.mark.parametrize("alias", ["smollm2", "gemma3-270m"])
def test_a_published_file_encodes_as_in_llama_cpp(tools, alias):
    try:
        checkpoint = open_checkpoint(alias)
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")
    texts = [
        *tools.texts,
        *tools.texts[1],
        "<|im_start|>user\nhi<|im_end|>\n",
        "<start_of_turn>user\nhi<end_of_turn>\n",
        *(" ", "", "\n", " \n  \n", "\t\t", "a" * 50, "1234567 3.14159", "\u0301 begins with a mark"),
        LICENSE.read_text(),
    ]
    tokenizer = checkpoint.tokenizer()
    assert [list(tokenizer.encode(text)) for text in texts] == llamacpp.tokenize(checkpoint.path, texts)
