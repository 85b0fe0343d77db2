"""The next-token modules that DeepSeek and GLM checkpoints carry. Knows where they are fed; no layer of theirs."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from byref.contract.plugin import RoleSource
from byref.contract.roles import DRAFT
from byref.contract.specs import TapSpec
from byref_spec_decoding.fed import FedDrafter


class MtpOptions(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `mtp`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: int = Field(default=0, ge=0)
    """Which of the checkpoint's modules drafts; it is run again for every further token."""


class Mtp(FedDrafter):
    """Multi-token prediction (DeepSeek-V3 technical report, section 2.2). The module is fed normed hidden states, the
    target's first and then its own, and keeps a cache of its own in the target's KV role."""

    Options = MtpOptions
    own_tap = "normed"

    @classmethod
    def roles(cls, options: MtpOptions) -> Mapping[str, RoleSource]:
        return {DRAFT: RoleSource(architecture="{}.mtp", overrides={"mtp_module": options.module})}

    def column(self, spec: TapSpec) -> int | None:
        return 0 if spec.point == "normed" else None
