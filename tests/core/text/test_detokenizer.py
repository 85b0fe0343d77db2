"""Streamed pieces joined are the whole, and none ends in half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from byref.text import Tokenizer as ByrefTokenizer
from byref.text.chat import ChatTemplate

TEXT = "a é€😀 👩‍👩‍👧 e\u0301 日本 \ufffd  b"


def byte_level():
    """One token per byte, a special token, and an added one that is not in the bytes' alphabet."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_tokens([AddedToken("<end>", special=True), AddedToken("<think é>")])
    return backend


def byte_fallback():
    """A few words with a leading space, and bytes for everything else."""
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", "é", "▁▁"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>")])
    return backend


TOKENIZERS = {make.__name__: ByrefTokenizer(make(), ChatTemplate(None, "test")) for make in (byte_level, byte_fallback)}
kinds = pytest.mark.parametrize("kind", TOKENIZERS)


def streamed(tokenizer, ids):
    stream = tokenizer.stream()
    return [*(stream.push(i) for i in ids), stream.flush()]


@kinds
@given(data=st.data())
def test_any_ids(kind, data):
    tokenizer = TOKENIZERS[kind]
    characters = st.sampled_from(sorted(set(TEXT))).map(lambda text: tokenizer.encode(text, special=False))
    anything = st.integers(0, tokenizer.size + 3).map(lambda i: [i])
    last = st.integers(tokenizer.size - 9, tokenizer.size - 1).map(lambda i: [i])
    parts = data.draw(st.lists(st.one_of(characters, anything, last), max_size=12))
    ids = [i for part in parts for i in part]
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@kinds
def test_half_a_character_is_never_shown(kind):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(TEXT.replace("\ufffd", ""))
    assert len(ids) > len(TEXT)
    *pieces, rest = streamed(tokenizer, ids)
    assert "".join(pieces) + rest == TEXT.replace("\ufffd", "")
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_is_shown_when_its_last_byte_comes():
    tokenizer = TOKENIZERS["byte_level"]
    assert streamed(tokenizer, tokenizer.encode("😀!")) == ["", "", "", "😀", "!", ""]


@kinds
def test_half_a_character_at_the_end_is_flushed(kind):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode("a😀")[:-1]
    *pieces, rest = streamed(tokenizer, ids)
    assert "".join(pieces) == "a"
    assert rest == tokenizer.decode(ids)[1:]
    assert "\ufffd" in rest


def test_special_tokens_and_padding_are_skipped():
    tokenizer = TOKENIZERS["byte_level"]
    (end,) = tokenizer.special_ids
    first, second, *_ = tokenizer.encode("é")
    assert streamed(tokenizer, [first, end, tokenizer.size + 5, second]) == ["", "", "", "é", ""]


def test_two_streams_do_not_mix():
    tokenizer = TOKENIZERS["byte_level"]
    one, two = tokenizer.stream(), tokenizer.stream()
    first, second = tokenizer.encode("é")
    assert one.push(first) == ""
    assert two.push(tokenizer.encode("x")[0]) == "x"
    assert one.push(second) == "é"


def test_the_size_counts_holes():
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 7}, "a"))
    assert ByrefTokenizer(backend, ChatTemplate(None, "test")).size == 8
