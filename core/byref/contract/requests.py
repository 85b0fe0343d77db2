"""What a client asks for and what core knows of it on the host. Holds no tensor and no plugin's noun."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from byref.contract.errors import RequestError
from byref.contract.explain import problems, raise_problems

Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0)]
TokenKey = Annotated[int, Field(ge=0, strict=False)]
"""A token id that names a value; as text too, since the keys of a JSON object are texts."""
MOST_CHOICES = 1024


class SamplingParams(BaseModel):
    """How the next tokens of one request are chosen.

    Raises:
        RequestError: a parameter is unknown, out of range or not a number; its name is given. A validation context,
            where there is one, says of a parameter's name how the user knows it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_tokens: int = Field(default=128, ge=1)
    """At most so many new tokens."""
    min_tokens: int = Field(default=0, ge=0)
    """At least so many new tokens: until then no token ends the turn, and stop strings are not looked for."""
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    """Choices: so many completions of the prompt, each with noise of its own; needs a temperature above 0."""
    temperature: Finite = Field(default=0.0, ge=0.0, le=100.0)
    """0 is greedy."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: Finite = Field(default=1.0, gt=0.0, le=1.0)
    """Keep the smallest set of likeliest tokens whose probability reaches top_p."""
    min_p: Finite = Field(default=0.0, ge=0.0, le=1.0)
    """Keep tokens at least so likely as this part of the likeliest one's probability."""
    presence_penalty: Finite = Field(default=0.0, ge=-2.0, le=2.0)
    """Subtracted from the logit of every token generated before."""
    frequency_penalty: Finite = Field(default=0.0, ge=-2.0, le=2.0)
    """Subtracted from the logit of a token once for each time it was generated before."""
    repetition_penalty: Finite = Field(default=1.0, gt=0.0, le=100.0)
    """Divides positive logits of tokens in the prompt or generated before, and multiplies negative ones."""
    logit_bias: Mapping[TokenKey, Annotated[Finite, Field(ge=-100.0, le=100.0)]] = Field(default_factory=dict)
    """Per token id: added to its logit."""
    allowed_token_ids: tuple[TokenId, ...] | None = Field(default=None, min_length=1, strict=False)
    """Only these tokens are chosen."""
    banned_token_ids: tuple[TokenId, ...] = Field(default=(), strict=False)
    """These tokens are never chosen."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Fixes the tokens, whatever else is in the batch. None takes one from the system's entropy."""
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(default=(), strict=False)
    """Strings that end the text; they are not part of it."""
    stop_token_ids: tuple[TokenId, ...] = Field(default=(), strict=False)
    """Token ids that end the turn, besides the model's own."""
    ignore_eos: bool = False
    """Go on after the model's own end tokens."""
    logprobs: int | None = Field(default=None, ge=0, le=100)
    """Report the chosen token's log-probability, and those of so many likeliest tokens."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=100)
    """The same for every prompt token but the first."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) may not exceed max_tokens ({self.max_tokens})")
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n ({self.n}) choices at temperature 0 would all be the same: give a temperature")
        return self

    @model_validator(mode="wrap")
    @classmethod  # the last validator: it also sees what the others refuse
    def _named(cls, values: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            place = info.context or _place
            raise_problems(RequestError, list(problems(error, cls)), lambda p: place(p.field), error)


def _place(field: str) -> str:
    return f"sampling parameters, field {field}" if field else "sampling parameters"


class Reason(enum.Enum):
    """Why a request left the engine, or its row."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"
    PREEMPTED = "preempted"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence being generated.

    Core fills the lower fields and says when; plugins read them and add cache-key parts, nothing else.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    """`params.seed`, or the one drawn for it; of a further choice the one that follows from that."""
    options: Mapping[str, BaseModel] = field(default_factory=dict)
    """Per plugin: the request's validated options."""
    priority: int = 0
    arrival: int = 0
    """Counts up over the engine's life; ties in priority are served in this order."""

    row: int = 0
    """Its row in every per-request table while it runs; 0 (the sink) while it waits."""
    tokens: list[int] = field(default_factory=list)
    """Prompt and accepted tokens."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Per role: cache entries that are computed and kept. `lengths["target"]` is at most len(tokens) - 1
    while decoding: the newest token is computed by the next forward."""
    cached_tokens: int = 0
    """Prompt tokens that `KV.match` found."""
    cache_key: dict[str, Hashable] = field(default_factory=dict)
    """Per plugin: what else than tokens makes its cache entries unlike another request's."""

    @property
    def generated(self) -> int:
        """Number of tokens accepted since the prompt."""
        return len(self.tokens) - len(self.prompt)

    @property
    def computed(self) -> int:
        """Cache entries of the target that are computed and kept."""
        return self.lengths.get("target", 0)

    @property
    def limit(self) -> int:
        """Most tokens it can ever have, prompt included."""
        return len(self.prompt) + self.params.max_tokens
