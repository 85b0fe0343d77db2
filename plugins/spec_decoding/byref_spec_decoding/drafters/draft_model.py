"""Another, smaller model drafts. Knows its role and its lengths; not what its layers compute."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from byref.contract.plugin import RoleSource
from byref.contract.roles import DRAFT
from byref_spec_decoding.drafter import Draft, Drafter, Round
from byref_spec_decoding.rollout import roll_out


class DraftModelOptions(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `draft_model`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    """The checkpoint: a path, or a name as in `[model] path`. Its vocabulary must be the target's."""


class DraftModel(Drafter):
    """Speculative decoding with a draft model (Leviathan et al. 2022; Chen et al. 2023), its cache in the same KV role.

    It computes what it has missed before it drafts: the whole prompt at first, later what was accepted since.
    """

    Options = DraftModelOptions
    runs_forwards = True
    soft = True

    @classmethod
    def roles(cls, options: DraftModelOptions) -> Mapping[str, RoleSource]:
        return {DRAFT: RoleSource(path=options.model, same_vocabulary=True)}

    def propose(self, round: Round) -> Mapping[str, Draft]:
        return roll_out(round, self.sizing)
