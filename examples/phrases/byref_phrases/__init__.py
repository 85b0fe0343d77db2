"""A drafter of a third party: where a text begins a phrase that is known beforehand, the rest of it is guessed.

`byref_spec_decoding` verifies what is guessed, so a wrong guess costs a little time and never a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.roles import SPECULATION
from byref_spec_decoding.drafter import KIND, Draft, LookupDrafter

if TYPE_CHECKING:
    from byref.contract import Request
    from byref.contract.plugin import Registry
    from byref.contract.roles import Sizing
    from byref.contract.state import State


class Options(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `phrases`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    phrases: tuple[str, ...] = Field(min_length=1)
    """Texts that answers are likely to hold: names of an interface, a salutation, a licence."""
    begin: int = Field(default=3, ge=1)
    """So many tokens of a phrase must be there before the rest of it is guessed."""


class Phrases(LookupDrafter):
    """Looks up what the newest tokens begin. A drafter is made once, when its engine starts."""

    Options = Options

    def states(self, sizing: Sizing) -> Sequence[State]:
        """It keeps no tensor, so it has no states; but here it is told of the target's tokens."""
        assert sizing.vocabulary is not None, "an engine has one"
        tokenizer = Tokenizer.from_str(sizing.vocabulary.definition())
        self._rests: dict[tuple[int, ...], tuple[int, ...]] = {}
        for text in self.options.phrases:
            ids = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
            self._rests |= {ids[:size]: ids[size:] for size in range(self.options.begin, len(ids))}
        self._longest = max(map(len, self._rests), default=0)
        return super().states(sizing)

    def look_up(self, request: Request, most: int) -> Draft:
        """At most so many drafts. Under `key` the plugin learns how often a match of this length is right."""
        for size in range(min(self._longest, len(request.tokens)), self.options.begin - 1, -1):
            if rest := self._rests.get(tuple(request.tokens[-size:])):
                return Draft(rest[:most], key=size)
        return Draft(())


class PhrasesPlugin(Plugin):
    """Announces the drafter; `spec_decoding`, which it requires, runs it."""

    info = PluginInfo(api_version=API_VERSION, requires=(SPECULATION,))

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.register(KIND, "phrases", Phrases)
