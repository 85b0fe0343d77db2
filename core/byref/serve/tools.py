"""Calls of tools, as text of the model's and as clients read them. Knows the form; a plugin holds the model to it.

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` after any text, as Hermes and Qwen templates ask.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from byref.serve.errors import ApiError
from byref.serve.schemas import ChatRequest
from byref.text import Tokenizer

BEGIN, END = "<tool_call>", "</tool_call>"


def check_template(tokenizer: Tokenizer) -> None:
    """Refuse tools that the model would not be told of."""
    if not tokenizer.takes_tools:
        what = "the model's chat template knows no tools; another one can be given with --chat-template"
        raise ApiError(what, param="tools", code="unsupported")


def offered(body: ChatRequest) -> list[dict[str, Any]] | None:
    """The tools as templates read them."""
    if not body.tools or body.tool_choice == "none":
        return None
    return [tool.model_dump(exclude_none=True) for tool in body.tools]


class CallReader:
    """Splits one choice's growing text into what is said and what is called."""

    def __init__(self, body: ChatRequest) -> None:
        self._reads = bool(body.tools) and body.tool_choice != "none"
        self._held = ""
        self._inside = False
        """Whether what is held began as a call."""
        self.called = 0
        """Calls so far."""

    def push(self, text: str, *, last: bool) -> tuple[str, list[tuple[int, dict[str, Any]]]]:
        """Take the next text: what of it is said, and the calls that are complete, numbered."""
        if not self._reads:
            return text, []
        said: list[str] = []
        calls: list[tuple[int, dict[str, Any]]] = []
        self._held += text
        while (mark := END if self._inside else BEGIN) in self._held:
            before, _, self._held = self._held.partition(mark)
            if self._inside:
                calls.append((self.called, _call(before)))
                self.called += 1
            else:
                said.append(before)
            self._inside = not self._inside
        said.append(self._release(last=last))
        shown = "".join(said)
        return (shown if shown.strip() or not self.called else ""), calls

    def _release(self, *, last: bool) -> str:
        """What is said for certain; of a call that a limit cut off, its text."""
        if self._inside:
            return BEGIN + self._held if last else ""
        begun = 0 if last else next((n for n in range(len(BEGIN) - 1, 0, -1) if self._held.endswith(BEGIN[:n])), 0)
        cut = len(self._held) - begun
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown


def _call(text: str) -> dict[str, Any]:
    """A call as clients read it; what is no call of ours is an error of the model's, not of the client's."""
    try:
        call = json.loads(text)
        name, arguments = call["name"], call["arguments"]
    except (ValueError, KeyError, TypeError) as error:
        raise ApiError("the model made a call that cannot be read", status=500, code="bad_tool_call") from error
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
