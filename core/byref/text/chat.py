"""Renders conversations by a model's chat template, sandboxed. Knows no ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from byref.contract.errors import ModelError, RequestError

Message = Mapping[str, Any]
"""`role` and `content`, and what else the template knows."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template, where it came from, and the texts of the special tokens it may name."""

    source: str | None
    where: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    @property
    def takes_tools(self) -> bool:
        """Whether it tells the model of tools."""
        return self.source is not None and "tools" in self.source

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The conversation as one prompt, with the tools that the model may call.

        Raises:
            ModelError: the model has no template, or one with a syntax error.
            RequestError: the template refuses the messages.
        """
        if self.source is None:
            raise ModelError(
                "the model has no chat template", where=self.where, hint="a plain prompt instead of messages"
            )
        from jinja2 import TemplateError, TemplateSyntaxError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, _ = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                tools=None if tools is None else [dict(tool) for tool in tools],
                chat_template=self.source,
                add_generation_prompt=add_generation_prompt,
                **self.tokens,
            )
        except TemplateSyntaxError as error:
            raise ModelError(f"the chat template cannot be read: {error}", where=self.where) from error
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise RequestError(f"the chat template refuses the messages: {error}", where=self.where) from error
        return str(texts[0])
