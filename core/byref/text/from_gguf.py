"""Builds a tokenizer from a GGUF file's metadata. Knows the keys, not the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from byref.contract.errors import ModelError
from byref.text import byte_level, sentencepiece
from byref.text.chat import ChatTemplate
from byref.text.pre_tokenizers import STYLES, Style
from byref.text.sentencepiece import Kind
from byref.text.tokenizer import Tokenizer

_PREFIX = "tokenizer.ggml."
_NEEDED = {"gpt2": ("tokens", "merges"), "llama": ("tokens", "scores", "token_type")}
"""Kinds of vocabulary, and what each must carry."""
_TEXTS = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}


def tokenizer_from_gguf(metadata: Mapping[str, Any], path: str) -> Tokenizer:
    """The tokenizer a GGUF file carries.

    Raises:
        ModelError: it carries none, or one of a kind nobody knows.
    """
    fields = {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}
    kind = fields.get("model")
    if kind is None:
        raise ModelError(
            "the file carries no tokenizer", where=path, hint="convert the model again, with its tokenizer"
        )
    if kind not in _NEEDED:
        raise ModelError(f"the tokenizer is of kind {kind!r}", where=path, hint=f"one of {', '.join(sorted(_NEEDED))}")
    if missing := [key for key in _NEEDED[kind] if key not in fields]:
        raise ModelError(f"the tokenizer lacks {', '.join(missing)}", where=path, hint="convert the model again")
    try:
        backend = _backend(kind, fields, path)
        texts = {role: fields["tokens"][fields[key]] for role, key in _TEXTS.items() if key in fields}
    except ModelError:
        raise
    except Exception as error:  # the library raises nothing finer: a merge of unknown tokens, say
        raise ModelError(
            f"the tokenizer cannot be built: {error}", where=path, hint="convert the model again"
        ) from error
    return Tokenizer(backend, ChatTemplate(metadata.get("tokenizer.chat_template"), path, texts))


def _backend(kind: str, fields: Mapping[str, Any], path: str) -> Backend:
    if kind == "gpt2":
        style = _style(fields, path)
        backend, begins = byte_level.build(fields, style), style.begins
    else:
        backend, begins = sentencepiece.build(fields), True
    _surround(backend, fields, begins=begins)
    _add_tokens(backend, fields)
    return backend


def _style(fields: Mapping[str, Any], path: str) -> Style:
    name = fields.get("pre", "")
    if name not in STYLES:
        raise ModelError(
            f"the file's pre-tokenizer {name!r} is unknown" if name else "the file names no pre-tokenizer",
            where=f"{path}, field {_PREFIX}pre",
            hint=f"one of {', '.join(sorted(STYLES))}, or the same model as a Hugging Face folder",
        )
    return STYLES[name]


def _surround(backend: Backend, fields: Mapping[str, Any], *, begins: bool) -> None:
    """Begin-of-text and end-of-text where the file, or else its kind, asks for them."""
    wanted = {"bos": fields.get("add_bos_token", begins), "eos": fields.get("add_eos_token", False)}
    asked = {role: fields[f"{role}_token_id"] for role in wanted if wanted[role] and f"{role}_token_id" in fields}
    if not asked:
        return
    tokens = {role: fields["tokens"][end] for role, end in asked.items()}
    pieces = [token for token in (tokens.get("bos"), "$A", tokens.get("eos")) if token]
    special = [(tokens[role], asked[role]) for role in asked]
    backend.post_processor = processors.TemplateProcessing(single=pieces, special_tokens=special)


def _add_tokens(backend: Backend, fields: Mapping[str, Any]) -> None:
    """Tokens matched whole in the text: control tokens, and those the model's author added."""
    kinds = list(zip(fields["tokens"], fields.get("token_type", ()), strict=False))
    for wanted, special in ((Kind.CONTROL, True), (Kind.USER_DEFINED, False)):
        names = [token for token, kind in kinds if kind == wanted]
        backend.add_tokens([AddedToken(name, special=special, normalized=False) for name in names])
