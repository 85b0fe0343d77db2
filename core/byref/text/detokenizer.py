"""Turns ids into text one at a time, without ever showing half a character. Knows no stop string."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from byref.text.tokenizer import Tokenizer

_HALF = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """The text of a growing list of ids: the pieces joined are the decoded whole, special tokens skipped.

    Only a short window is decoded again for each id. `tokenizers.DecodeStream` has no flush, and fails on a
    run of byte tokens that turns out to be no character; hence this.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        """Ids already shown in full: they decide how the next ones are spelled, a leading space above all."""
        self._pending: list[int] = []
        self._shown = ""
        """What of the window's text has been returned, the context's included."""

    def push(self, id: int) -> str:
        """Take the next id; the text that is certain now, possibly none."""
        if not self._tokenizer.has_text(id):
            return ""  # as if it were not there: it does not even end a run of byte tokens
        self._pending.append(id)
        if id in self._tokenizer.byte_ids:
            return ""  # a run of byte tokens is decoded as a whole
        text = self._text()
        # A character that is not complete yet is one replacement character, and the last.
        emit = self._emit(text.removesuffix(_HALF))
        if not text.endswith(_HALF):
            self._advance(text)
        return emit

    def flush(self) -> str:
        """The rest, now that no more ids come; half a character becomes a replacement character."""
        emit = self._emit(self._text())
        self._context, self._pending, self._shown = [], [], ""
        return emit

    def _text(self) -> str:
        return self._tokenizer.decode([*self._context, *self._pending])

    def _emit(self, text: str) -> str:
        emit = text[len(self._shown) :]
        self._shown = max(text, self._shown, key=len)
        return emit

    def _advance(self, text: str) -> None:
        """Let the pending ids be the context of the next, if they have a text of their own."""
        if alone := self._tokenizer.decode(self._pending):
            self._context, self._shown = self._pending, alone
        else:
            self._context, self._shown = [*self._context, *self._pending], text
        self._pending = []
