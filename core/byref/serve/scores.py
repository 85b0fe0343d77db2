"""Log-probabilities as clients read them. Knows both forms, of completions and of chats; no engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from byref.text import Tokenizer

PART = "\N{REPLACEMENT CHARACTER}"
LOWEST = -9999.0
"""JSON has no infinity: what stands for the log-probability of a token that cannot come."""
Scores = Mapping[int, float]
"""The token's own first, then the likeliest ones."""


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """A token alone; its name in the vocabulary where it is special or part of a character. No two are alike."""
    text = tokenizer.decode([id])
    return text if text and PART not in text else tokenizer.backend.id_to_token(id) or ""


class Offsets:
    """Where tokens stand in the text that they make; one in the middle of a character stands where that begins.

    Args:
        tokenizer: makes text of them.
        at: where the first one stands.
    """

    def __init__(self, tokenizer: Tokenizer, at: int = 0) -> None:
        self._detokenizer, self._at = tokenizer.stream(), at

    def of(self, ids: Sequence[int]) -> list[int]:
        """Of the next tokens."""
        found = []
        for id in ids:
            found.append(self._at)
            self._at += len(self._detokenizer.push(id))
        return found


def of_completion(
    tokenizer: Tokenizer, ids: Sequence[int], scores: Sequence[Scores | None], most: int, offsets: Sequence[int]
) -> dict[str, Any]:
    """Four lists, one entry per token; `offsets` say where they stand in the text."""
    return {
        "tokens": [token_text(tokenizer, id) for id in ids],
        "token_logprobs": [None if one is None else _finite(one[id]) for id, one in zip(ids, scores, strict=True)],
        "top_logprobs": [None if one is None else _named(tokenizer, one, most) for one in scores],
        "text_offset": list(offsets),
    }


def of_chat(tokenizer: Tokenizer, ids: Sequence[int], scores: Sequence[Scores], most: int) -> dict[str, Any]:
    """One table per token."""
    content = [
        {**_token(tokenizer, id, one[id]), "top_logprobs": [_token(tokenizer, t, s) for t, s in likeliest(one, most)]}
        for id, one in zip(ids, scores, strict=True)
    ]
    return {"content": content, "refusal": None}


def likeliest(scores: Scores, most: int) -> list[tuple[int, float]]:
    """The likeliest tokens, likeliest first."""
    return sorted(scores.items(), key=lambda pair: -pair[1])[:most]


def of_prompt(scores: Sequence[Scores | None], most: int) -> list[dict[int, float] | None]:
    """By token id."""
    return [None if one is None else {id: _finite(score) for id, score in _top(one, most).items()} for one in scores]


def _top(scores: Scores, most: int) -> Scores:
    """The token's own, even if it is none of the likeliest, then those."""
    own = next(iter(scores))
    return {own: scores[own], **dict(likeliest(scores, most))}


def _named(tokenizer: Tokenizer, scores: Scores, most: int) -> dict[str, float]:
    """By text; of tokens with one text, the likeliest counts."""
    named: dict[str, float] = {}
    for id, score in _top(scores, most).items():
        text = token_text(tokenizer, id)
        named[text] = max(_finite(score), named.get(text, LOWEST))
    return named


def _token(tokenizer: Tokenizer, id: int, score: float) -> dict[str, Any]:
    alone = tokenizer.decode([id])
    known = None if PART in alone else list(alone.encode())
    return {"token": token_text(tokenizer, id), "logprob": _finite(score), "bytes": known}


def _finite(score: float) -> float:
    return score if math.isfinite(score) else LOWEST
