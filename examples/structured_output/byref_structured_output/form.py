"""What a request may ask of its answer's form, and the grammar that says so. Knows llguidance's notation; no engine."""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

BEGIN, END = "<tool_call>", "</tool_call>"


class Function(BaseModel):
    """A function that may be called, and the schema of its arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})


class Tools(BaseModel):
    """Answers that call functions: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, after any text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    functions: tuple[Function, ...] = Field(min_length=1)
    required: bool = False
    """The answer is a call and nothing else."""
    parallel: bool = True
    """It may be several calls."""

    def grammar(self) -> str:
        """In llguidance's Lark."""
        bodies = " | ".join(f"body_{i}" for i in range(len(self.functions)))
        call = f'"{BEGIN}" body'
        more = f'("\\n"? {call})*' if self.parallel else ""
        first = call if self.required else "opened body"
        start = f"{first} {more}" if self.required else f"said | {first} {more}"
        rules = [f"start: {start}", f"body: {bodies}"]
        if not self.required:
            rules += ["said: SAID", "SAID: /(.|\\n)*/", f'opened[lazy]: /(.|\\n)*/ "{BEGIN}"']
        for i, function in enumerate(self.functions):
            head = json.dumps(f'\n{{"name": {json.dumps(function.name)}, "arguments": ')
            tail = json.dumps(f"}}\n{END}")
            rules += [f"body_{i}: {head} arguments_{i} {tail}", f"arguments_{i}: %json {_schema(function.parameters)}"]
        return "%llguidance {}\n" + "\n".join(rules) + "\n"


class Form(BaseModel):
    """The form of an answer: exactly one of these."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    json_object: bool | None = None
    """Any JSON object."""
    json_schema: dict[str, Any] | None = None
    """JSON that follows the schema."""
    regex: str | None = None
    """A regular expression, of the whole answer."""
    grammar_text: str | None = Field(default=None, alias="grammar")
    """A grammar in llguidance's Lark."""
    tools: Tools | None = None

    @model_validator(mode="after")
    def _one_that_can_be_followed(self) -> Self:
        from llguidance import LLMatcher

        given = [name for name in type(self).model_fields if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError("give exactly one of json_object, json_schema, regex, grammar, tools")
        if error := LLMatcher.validate_grammar(self.grammar()):
            raise ValueError(f"{given[0]} cannot be followed: {error}")
        return self

    def grammar(self) -> str:
        """As llguidance takes it."""
        from llguidance import LLMatcher

        if self.tools is not None:
            return LLMatcher.grammar_from_lark(self.tools.grammar())
        if self.regex is not None:
            return LLMatcher.grammar_from_regex(self.regex)
        if self.grammar_text is not None:
            return LLMatcher.grammar_from_lark(self.grammar_text)
        return LLMatcher.grammar_from_json_schema(_schema(self.json_schema or {"type": "object"}))


def _schema(schema: dict[str, Any]) -> str:
    """With one way to write white space: a model that may write any amount of it may never stop."""
    return json.dumps({"x-guidance": {"whitespace_flexible": False}, **schema})
