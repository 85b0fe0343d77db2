"""From what a client sends to requests that can run. Knows the real vocabulary, the context and what never fits.

Must not know the queue: a refusal here leaves nothing behind.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from byref.contract.errors import RequestError
from byref.contract.requests import Request, SamplingParams
from byref.contract.roles import KV
from byref.engine.noise import choice_seed, stream
from byref.text import Tokenizer

Prompt = str | Sequence[int]
Params = SamplingParams | Mapping[str, Any]


def parse_params(params: Params | None) -> SamplingParams:
    """Parameters, or a table of them by name.

    Raises:
        RequestError: one is unknown, out of range or not a number; its name is given.
    """
    if params is None or isinstance(params, SamplingParams):
        return params or SamplingParams()
    try:
        table = dict(params)
    except (TypeError, ValueError) as error:
        raise RequestError("the sampling parameters are no table", hint='{"temperature": 0.7}') from error
    return SamplingParams.model_validate(table)


@dataclass(slots=True)
class Intake:
    """Checks what comes in, once."""

    tokenizer: Tokenizer
    vocabulary: int
    """Ids below it are real; a model's rows beyond are padding."""
    end_ids: frozenset[int]
    """Every end token that the checkpoint declares."""
    max_context: int
    kv: KV
    seed: int
    """Seeds requests that bring none."""
    _arrivals: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def requests(
        self,
        prompt: Prompt,
        params: SamplingParams,
        id: str | None,
        priority: int,
        options: Mapping[str, BaseModel],
        cache_salt: str | None = None,
    ) -> list[Request]:
        """The choices of one request; the first has the request's own id.

        Raises:
            RequestError: it can never be served; the reason.
        """
        arrival = next(self._arrivals)
        id = f"request-{arrival}" if id is None else id
        where = f"request {id}"
        _check_names(id, priority)
        salt = _salted(cache_salt, where)
        ids = self._prompt(prompt, f"{where}, field prompt")
        self._check(params, where)
        seed = params.seed if params.seed is not None else stream(self.seed, arrival)
        requests = [
            Request(
                choice_id(id, choice),
                ids,
                params,
                choice_seed(seed, choice),
                options,
                priority,
                arrival,
                tokens=list(ids),
                cache_key=dict(salt),
            )
            for choice in range(params.n)
        ]
        if reason := self.kv.refusal(requests[0]):
            raise RequestError(
                f"request {id} can never run: {reason}",
                where=f"{where}, field prompt",
                hint="a shorter prompt, fewer max_tokens, or more room ([engine] kv_tokens, or the KV plugin's own)",
            )
        return requests

    def ends(self, params: SamplingParams) -> frozenset[int]:
        """Tokens that end the turn of a request."""
        return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.end_ids)

    def _prompt(self, prompt: Prompt, where: str) -> tuple[int, ...]:
        ids = self._encode(prompt, where) if isinstance(prompt, str | bytes) else _integers(prompt, where)
        if not ids:
            raise RequestError("the prompt is empty", where=where, hint="give at least one token")
        self._real(ids, "the prompt", where)
        if len(ids) >= self.max_context:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, and the model has room for {self.max_context}, one of them new",
                where=where,
                hint=f"shorten it to {self.max_context - 1}",
            )
        return ids

    def _encode(self, text: str | bytes, where: str) -> tuple[int, ...]:
        try:
            text = text.decode() if isinstance(text, bytes) else text
            text.encode()
        except UnicodeError as error:
            raise RequestError(f"the prompt is no valid text: {error}", where=where, hint="correct it") from error
        return tuple(self.tokenizer.encode(text))

    def _check(self, params: SamplingParams, where: str) -> None:
        """Ids are real, and some token can be chosen at every position."""
        for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
            self._real(getattr(params, name) or (), name, where)
        banned = set(params.banned_token_ids)
        early = banned | self.ends(params) if params.min_tokens else banned
        if self._leave_some(params, early):
            return
        if not self._leave_some(params, banned):
            field = f"{where}, field banned_token_ids"
            raise RequestError("banned_token_ids leave no token to choose", where=field, hint="ban fewer")
        raise RequestError(
            "min_tokens forbid every token that may be chosen: only end tokens are left",
            where=f"{where}, field min_tokens",
            hint="allow more tokens, or min_tokens = 0",
        )

    def _leave_some(self, params: SamplingParams, banned: set[int]) -> bool:
        allowed = params.allowed_token_ids
        return len(banned) < self.vocabulary if allowed is None else bool(set(allowed) - banned)

    def _real(self, ids: Iterable[int], name: str, where: str) -> None:
        bad = next((token for token in ids if not 0 <= token < self.vocabulary), None)
        if bad is not None:
            raise RequestError(
                f"token id {bad} in {name} is outside the vocabulary of {self.vocabulary}",
                where=where if ", field " in where else f"{where}, field {name}",
                hint=f"ids from 0 to {self.vocabulary - 1}",
            )


def _check_names(id: object, priority: object) -> None:
    if not isinstance(id, str) or not id:
        raise RequestError(f"the request id {id!r} is no text", hint="leave it out, or give one")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RequestError(
            f"the priority {priority!r} is no integer", where=f"request {id}", hint="0, or less to be earlier"
        )


def _salted(salt: object, where: str) -> dict[str, str]:
    """The part of the cache key that keeps requests of different salt apart."""
    if salt is None:
        return {}
    if not isinstance(salt, str) or not salt:
        where = f"{where}, field cache_salt"
        raise RequestError(f"the cache salt {salt!r} is no text", where=where, hint="leave it out")
    return {"cache_salt": salt}


def choice_id(id: str, choice: int) -> str:
    """What hooks and memory know a choice as; choice 0 is the request itself."""
    return f"{id}#{choice}" if choice else id


def _integers(prompt: Iterable[Any], where: str) -> tuple[int, ...]:
    """Token ids of any integer type; a truth value is none."""
    try:
        return tuple(_index(token) for token in prompt)
    except TypeError as error:
        raise RequestError(
            f"the prompt is neither text nor a list of token ids: {error}", where=where, hint='"text", or [1, 2, 3]'
        ) from error


def _index(token: Any) -> int:
    if isinstance(token, bool):
        raise TypeError(f"{token!r} is no token id")
    return operator.index(token)
