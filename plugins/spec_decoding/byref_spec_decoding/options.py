"""The plugin's options and a request's. Knows names and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from byref.contract.step import MAX_TREE


class Options(BaseModel):
    """The table `[plugins.spec_decoding]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drafter: str = "ngram"
    """Who proposes: ngram, suffix, draft_model, self, eagle, mtp, or one that another plugin registers."""
    max_draft_tokens: int = Field(default=8, ge=1, le=MAX_TREE)
    """Drafts verified in one window, at most."""
    adaptive: bool = True
    """Draft only as many as pay, by measured acceptance and measured cost; else always the most."""
    tree: bool = False
    """Let the drafter offer several continuations at once."""
    accept: Literal["equal", "rejection"] = "equal"
    """Which drafts stay. equal: those that are the token the target draws itself, so that the output is that without
    drafts. rejection: rejection sampling, by which more stay at high temperatures; the output is distributed as without
    drafts, and is another one."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """The drafter's own options, `[plugins.spec_decoding.options]`."""


class RequestOptions(BaseModel):
    """A request's `plugins: {spec_decoding: ...}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_draft_tokens: int | None = Field(default=None, ge=0, le=MAX_TREE)
    """At most so many drafts in a window of this request; 0 turns speculation off for it."""
