"""SentencePiece vocabularies from GGUF metadata, against the rule they follow written down again."""

import itertools
import random

import pytest

from byref.contract.errors import ModelError
from byref.text.from_gguf import tokenizer_from_gguf

WORDS = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "▁ab", "ca", "cab", "▁▁", "é"]


@pytest.fixture(scope="module")
def metadata():
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    order = random.Random(0).sample(range(len(WORDS)), len(WORDS))
    keys = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-float(rank) for rank in order],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(WORDS),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def reference(text, metadata):
    """Merge the neighbours whose union scores best, the leftmost of equals, until none is a token."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    score = {token: scores[i] for i, token in enumerate(tokens) if i >= 259}
    parts = list("▁" + text.replace(" ", "▁"))
    while pairs := [(score[a + b], -i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in score]:
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids = []
    for part in parts:
        ids += [tokens.index(part)] if part in score else [tokens.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return ids


def test_it_encodes_by_the_rule(metadata):
    found = tokenizer_from_gguf(metadata, "x.gguf")
    source = random.Random(1)
    for _ in range(300):
        text = "".join(source.choices("abc é😀", [4, 4, 4, 3, 1, 1], k=source.randint(1, 12)))
        ids = found.encode(text)
        assert ids == [1, *reference(text, metadata)], text
        assert found.decode(ids) == text


def test_control_tokens_are_matched_whole(metadata):
    found = tokenizer_from_gguf(metadata, "x.gguf")
    assert found.encode("</s>", special=False) == [2]
    assert found.special_ids == {1, 2}


def test_no_space_in_front_where_the_file_says_so(metadata):
    found = tokenizer_from_gguf(metadata | {"tokenizer.ggml.add_space_prefix": False}, "x.gguf")
    tokens = metadata["tokenizer.ggml.tokens"]
    assert found.encode("a", special=False) == [tokens.index("a")]
    assert found.decode(found.encode(" a")) == " a"


def test_bytes_are_known_as_bytes(metadata):
    assert tokenizer_from_gguf(metadata, "x.gguf").byte_ids == set(range(3, 259))


def test_scores_are_needed(metadata):
    metadata = {key: value for key, value in metadata.items() if not key.endswith("scores")}
    with pytest.raises(ModelError, match="the tokenizer lacks scores"):
        tokenizer_from_gguf(metadata, "x.gguf")
