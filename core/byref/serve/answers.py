"""What clients are answered, field by field: the OpenAPI document is made of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(BaseModel):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every error, also in the middle of a stream."""

    error: ErrorDetail


class PromptDetails(BaseModel):
    """Of the prompt tokens."""

    cached_tokens: int


class DraftDetails(BaseModel):
    """What speculation did."""

    drafted: int
    accepted: int


class Usage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    drafts: DraftDetails


class CompletionLogprobs(BaseModel):
    """Per token of the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion of one prompt."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None


class CompletionAnswer(BaseModel):
    """The answer of /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TokenLogprob(BaseModel):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(TokenLogprob):
    """A token of an answer, and what was likely instead."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """Per token of the answer."""

    content: list[ContentLogprob]
    refusal: None = None


class CallAnswer(BaseModel):
    """The function that the model calls, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCallAnswer(BaseModel):
    """A call that the client is asked to make."""

    id: str
    type: Literal["function"] = "function"
    function: CallAnswer


class MessageAnswer(BaseModel):
    """What the model says."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCallAnswer] | None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: MessageAnswer
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None


class ChatAnswer(BaseModel):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ModelCard(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "byref"
    max_model_len: int


class ModelList(BaseModel):
    """The answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeAnswer(BaseModel):
    """The answer of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeAnswer(BaseModel):
    """The answer of /detokenize."""

    prompt: str


class Health(BaseModel):
    """The answer of /health."""

    status: Literal["loading", "ready", "failed", "closed"]


class PluginAnswer(BaseModel):
    """A running plugin."""

    name: str
    distribution: str
    version: str
    provides: list[str]
    lossless: bool
    options: dict[str, Any]
    figures: dict[str, float]
    routes: list[str]


class PluginList(BaseModel):
    """The answer of /v1/plugins."""

    plugins: list[PluginAnswer]
    hooks: dict[str, list[str]]
    usage: dict[str, int]


class Aborted(BaseModel):
    """The answer of /v1/abort."""

    request_id: str
    aborted: bool
