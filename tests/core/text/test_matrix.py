"""Real kinds of tokenizers: what is streamed is the tokenizer's own whole decode, wherever characters are cut."""

import io
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from byref.text import StopScanner
from byref.text import Tokenizer as ByrefTokenizer
from byref.text.chat import ChatTemplate

LINES = [
    "The quick brown fox jumps over 12345 lazy dogs, doesn't it?  Yes - it does.",
    "naïve café, cafe\u0301, Zu\u0308rich, s\u0323\u0307, Việt Nam, Ünïcödé",
    "日本語の文章と한국어, русский текст, שָׁלוֹם, हिन्दी में",
    "👍🏽 👩‍👩‍👧‍👦 🇯🇵🇩🇪 🏴‍☠️ ❤️ 1️⃣ 🦊🦊",
    "def f(x):\n\treturn  x\r\n\n",
]
CHARACTERS = sorted({*"".join(LINES), "\u200d", "\ufe0f", "\u0301", "\ufffd", "\U0001f9ff", "\x00"})
TIKTOKEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
ADDED = [AddedToken("<end>", special=True), AddedToken("<think é>"), AddedToken("👩‍🚀"), AddedToken(" x ")]


def gpt2():
    """Byte-level BPE whose merges cut characters in the middle: it saw few of each."""
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size=330)


def tiktoken():
    """As Llama 3 and Qwen have it: the pattern of tiktoken, words of the vocabulary taken whole."""
    cut = pre_tokenizers.Split(Regex(TIKTOKEN), "isolated")
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _byte_level(pre_tokenizers.Sequence([cut, raw]), vocab_size=400, ignore_merges=True)


def _byte_level(pre_tokenizer, vocab_size, **model):
    backend = Tokenizer(models.BPE(**model))
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(LINES * 2, trainer)
    return backend


def sentencepiece_bpe():
    """As Llama 2 has it: a space before the text, bytes for what is missing."""
    return _sentencepiece(prefix=True)


def sentencepiece_bare():
    """As Gemma has it: no space before the text."""
    return _sentencepiece(prefix=False)


def _sentencepiece(*, prefix):
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz", "é", "日", "🦊", "\u0301"]
    pairs = [("▁", "a"), ("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁"), ("日", "日")]
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *letters, *(a + b for a, b in pairs)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, pairs, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def sentencepiece_unigram():
    """Pieces with scores instead of merges, bytes for what is missing."""
    pieces = ["▁", "▁the", "▁a", *"abcdefghijklmnopqrstuvwxyz", "é", "日本", "🦊", "ing"]
    vocabulary = [
        ("<unk>", 0.0),
        *((byte, -20.0) for byte in BYTES),
        *((p, -1.0 - i / 9) for i, p in enumerate(pieces)),
    ]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    steps = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first"), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    return backend


def made(build):
    backend = build()
    backend.add_tokens(ADDED)
    return ByrefTokenizer(backend, ChatTemplate(None, "test"))


BUILDERS = (gpt2, tiktoken, sentencepiece_bpe, sentencepiece_bare, sentencepiece_unigram)
TOKENIZERS = {build.__name__: made(build) for build in BUILDERS}
kinds = pytest.mark.parametrize("kind", TOKENIZERS)
texts = st.lists(st.sampled_from([*CHARACTERS, *LINES, *(token.content for token in ADDED)]), max_size=8).map("".join)


def streamed(tokenizer, ids):
    stream = tokenizer.stream()
    return [*(stream.push(id) for id in ids), stream.flush()]


@kinds
@given(text=texts)
@example("👩‍👩‍👧‍👦cafe\u0301")
@example("  leading  and trailing  ")
@example("\u0301 begins with a mark")
def test_a_text_comes_back_in_pieces(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


@kinds
@given(data=st.data())
def test_parts_of_texts_and_any_ids(kind, data):
    """As a model writes: texts that break off in a character, go on elsewhere, and ids that make no sense."""
    tokenizer = TOKENIZERS[kind]
    ids = []
    for _ in range(data.draw(st.integers(1, 4))):
        part = tokenizer.encode(data.draw(texts))
        start = data.draw(st.integers(0, len(part)))
        ids += part[start : data.draw(st.integers(start, len(part)))]
        ids += data.draw(st.lists(st.integers(0, tokenizer.size + 2), max_size=3))
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@kinds
@given(text=texts, stop=st.sampled_from(["👩‍👩‍👧", "\u0301", "é", "the", " ", "\n\n", "日本", "🇯🇵"]))
def test_a_stop_string_cuts_the_stream_where_it_cuts_the_text(kind, text, stop):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    scanner, shown, stopped = StopScanner([stop]), io.StringIO(), False
    for piece in streamed(tokenizer, ids):
        emit, stopped = scanner.push(piece)
        shown.write(emit)
        if stopped:
            break
    whole = tokenizer.decode(ids)
    assert stopped is (stop in whole)
    assert shown.getvalue() + ("" if stopped else scanner.flush()) == whole.split(stop)[0]


@kinds
def test_characters_are_cut_over_tokens(kind):
    """What the tests above rest on: an emoji is several ids, and a mark stands alone."""
    tokenizer = TOKENIZERS[kind]
    assert len(tokenizer.encode("\U0001f9ff", special=False)) >= 3
    assert len(tokenizer.encode("e\u0301", special=False)) > len(tokenizer.encode("e", special=False))
    assert unicodedata.combining("\u0301")


@pytest.mark.model
@given(text=texts)
def test_smollm2(smollm2, text):
    ids = smollm2.encode(text)
    assert "".join(streamed(smollm2, ids)) == smollm2.decode(ids)
