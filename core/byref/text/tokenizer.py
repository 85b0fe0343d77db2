"""A tokenizer of the `tokenizers` library with what an engine asks of it. Knows no file format."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tokenizers

from byref.text.chat import ChatTemplate, Message
from byref.text.detokenizer import Detokenizer

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")

__all__ = ["Message", "Tokenizer"]


class Tokenizer:
    """Encodes, decodes, streams, and renders chats.

    Args:
        backend: the library's tokenizer.
        template: the model's chat template.
    """

    def __init__(self, backend: tokenizers.Tokenizer, template: ChatTemplate) -> None:
        self.backend, self._template = backend, template

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a text. `special` adds what the model wants around it (a begin-of-text token, say); a
        rendered chat has that already."""
        return list(self.backend.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens skipped."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    @functools.cached_property
    def size(self) -> int:
        """One more than its highest id, holes counted; a model's vocabulary may be padded beyond."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def has_text(self, id: int) -> bool:
        """Whether decoding looks at it: no special token, and none of the padding beyond the vocabulary."""
        return id not in self.special_ids and self.backend.id_to_token(id) is not None

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that steer and are never text."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @functools.cached_property
    def byte_ids(self) -> frozenset[int]:
        """Tokens that stand for one byte each, where the vocabulary falls back on bytes."""
        # The decoder tells, whatever the model is: it joins the bytes. The library shows its steps in its state only.
        decoder = self.backend.decoder
        if decoder is None or b"ByteFallback" not in decoder.__getstate__():
            return frozenset()
        return frozenset(i for token, i in self.backend.get_vocab().items() if _BYTE.fullmatch(token))

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can work."""
        return self._template.source is not None

    def stream(self) -> Detokenizer:
        """A detokenizer for one growing list of ids."""
        return Detokenizer(self)

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template tells the model of tools."""
        return self._template.takes_tools

    def use_template(self, source: str, where: str) -> None:
        """Render chats with another template, read from `where`."""
        self._template = replace(self._template, source=source, where=where)

    def chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt of a conversation, to be encoded with `special=False`; tools are those that the model may call.

        Raises:
            ModelError: the model has no template.
            RequestError: the template refuses the messages.
        """
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools)
