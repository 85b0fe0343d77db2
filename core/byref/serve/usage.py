"""Tokens of a request, counted for the client. Knows completions; no endpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from byref.contract.requests import Reason
from byref.engine import Completion

FINISHED = {Reason.STOP: "stop", Reason.LENGTH: "length"}
"""How clients call the ways in which a completion ends."""


def usage(completions: Iterable[Completion], kept: int | None = None) -> dict[str, Any]:
    """The usage of some prompts' completions; `kept` is the number of new tokens where not all are the client's."""
    prompt = new = cached = drafted = accepted = 0
    for done in completions:
        prompt += len(done.prompt_ids)
        cached += done.cached_tokens
        for choice in done.choices:
            new += len(choice.token_ids)
            drafted += choice.drafts.drafted
            accepted += choice.drafts.accepted
    new = new if kept is None else kept
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": cached},
        "drafts": {"drafted": drafted, "accepted": accepted},
    }
