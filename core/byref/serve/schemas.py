"""What clients may ask, field by field. An unknown field, a wrong type and a number that is none are refused here.

Sampling fields are the engine's own, with its bounds; the engine itself checks ids against its vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    model_validator,
)

from byref.contract.requests import Finite, SamplingParams


def _check_text(value: str) -> str:
    """JSON can write half a character; no tokenizer reads one."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half a character (a lone surrogate)") from error
    return value


Whole = Annotated[str, AfterValidator(_check_text)]
Text = Annotated[Whole, Field(min_length=1)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Strict(BaseModel):
    """A table of a request: unknown fields are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


def _check_prompt(value: object) -> object:
    """One error for all forms of a prompt, instead of one for each."""
    one = isinstance(value, str) or _is_ids(value)
    if not one and not (isinstance(value, list) and value and all(isinstance(v, str) or _is_ids(v) for v in value)):
        raise ValueError("it is a text, a list of token ids, or a list of several such prompts, none of them empty")
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            _check_text(text)
    return value


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(v) is int and v >= 0 for v in value)


def _check_json(value: object) -> object:
    """JSON has no NaN and no infinity, wherever they stand; nor is it a hundred tables deep."""
    todo: list[tuple[object, int]] = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError("a number is not finite")
        if isinstance(one, str):
            _check_text(one)
        if depth > 64:
            raise ValueError("it is nested too deeply")
        items = [*one, *one.values()] if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        todo += [(item, depth + 1) for item in items]
    return value


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value


Table = Annotated[dict[str, Any], BeforeValidator(_check_json)]
Prompt = Annotated[str | list[int] | list[str | list[int]], BeforeValidator(_check_prompt)]
Stop = Annotated[tuple[Text, ...], BeforeValidator(_several), Field(strict=False, max_length=64)]
Options = Annotated[dict[str, dict[str, Any]], BeforeValidator(_check_json)]


class StreamOptions(Strict):
    """What a stream tells besides text."""

    include_usage: bool = False
    """A last event with the usage."""
    include_steps: bool = False
    """With every event what the engine's step did: its time, and which pieces of text were accepted drafts."""


class Sampling(SamplingParams):
    """What completions and chats have in common: the engine's sampling parameters, and what surrounds them."""

    ENGINE: ClassVar[tuple[str, ...]] = tuple(SamplingParams.model_fields)

    model: Text | None = None
    """The served model's name; it may be left out."""
    temperature: Finite = Field(default=1.0, ge=0.0, le=100.0)
    stop: Stop = ()
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Less is earlier, under the policy `priority`."""
    cache_salt: Text | None = None
    """Prefixes are shared only between requests of equal salt."""
    request_id: Annotated[Text, Field(max_length=128)] | None = None
    """What `/v1/abort` calls it; made up unless given. One in use is refused."""
    plugins: Options = Field(default_factory=dict)
    """Options of this request, by plugin."""

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, values: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """What is wrong is said in this room's shape, not as the engine says it."""
        return handler(values)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_unset(cls, values: Any) -> Any:
        """A known field that is null was not given."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None or name not in cls.model_fields}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """The engine's parameters check how they fit together, once they are all known."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options are for streams: set stream")
        return self

    def given(self) -> dict[str, Any]:
        """The engine's parameters that the client gave, and those whose default is another here."""
        names = self.model_fields_set | {"temperature"}
        return {name: getattr(self, name) for name in self.ENGINE if name in names}


class CompletionRequest(Sampling):
    """The body of /v1/completions."""

    prompt: Prompt
    max_tokens: int = Field(default=16, ge=0)
    """At most so many new tokens; 0 only with echo."""
    echo: bool = False
    """Let the text begin with the prompt, and its log-probabilities too."""

    @model_validator(mode="after")
    def _scores(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens may be 0 only with echo")
        return self


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: Whole


class CalledFunction(Strict):
    """What the model called."""

    name: Text
    arguments: Whole


class ToolCallMessage(Strict):
    """A call that an earlier answer made."""

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Whole | list[TextPart] | None = None
    name: Text | None = None
    tool_calls: list[ToolCallMessage] | None = None
    tool_call_id: Text | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("a message has content")
        return self


class Function(Strict):
    """What the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: Whole | None = None
    parameters: Table = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None
    """Arguments follow the schema whether it is set or not."""


class Tool(Strict):
    """A function that is offered to the model."""

    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    """One of the functions."""

    name: Text


class ToolChoice(Strict):
    """The function that has to be called."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(Strict):
    """The schema of an answer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    name: Text
    description: Whole | None = None
    schema_: Table = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") is not (self.json_schema is not None):
            raise ValueError("json_schema is given with the type json_schema, and with no other")
        return self


class ChatRequest(Sampling):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)  # type: ignore[assignment]  # None: all there is room for
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The newer name of max_tokens."""
    logprobs: bool = False
    """Report them; a chat says how many in a field of its own."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """So many of the likeliest tokens at each position."""
    tools: Annotated[list[Tool], Field(min_length=1, max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """Whether one answer may call several functions."""
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are one thing: give one of them")
        if self.tool_choice is not None and self.tools is None:
            raise ValueError("tool_choice needs tools")
        if self.parallel_tool_calls is not None and self.tools is None:
            raise ValueError("parallel_tool_calls needs tools")
        if isinstance(self.tool_choice, ToolChoice) and self.tool_choice.function.name not in self.functions:
            raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, which is none of the tools")
        return self

    @property
    def functions(self) -> list[str]:
        """Names of the tools."""
        return [tool.function.name for tool in self.tools or ()]

    @property
    def most_tokens(self) -> int | None:
        """At most so many new tokens, if the client says."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens


class TokenizeRequest(Strict):
    """The body of /tokenize."""

    model: Text | None = None
    prompt: Whole
    add_special_tokens: bool = True
    """Put around the text what the model wants there, a begin-of-text token say."""


class DetokenizeRequest(Strict):
    """The body of /detokenize."""

    model: Text | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


class AbortRequest(Strict):
    """The body of /v1/abort."""

    request_id: Text
