"""The next-token modules that DeepSeek and GLM checkpoints carry. Knows where they are fed; no layer of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from byref.contract.plugin import RoleSource
from byref.contract.roles import DRAFT, Sizing
from byref.contract.specs import EmbedSpec, Spec, TapSpec
from byref_spec_decoding.fed import FedDrafter

if TYPE_CHECKING:
    from byref.contract.state import State


class MtpOptions(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `mtp`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    module: int = Field(default=0, ge=0)
    """Which of the checkpoint's modules drafts; it is run again for every further token."""


class Mtp(FedDrafter):
    """Multi-token prediction (DeepSeek-V3 technical report, section 2.2). The module is fed normed hidden states, the
    target's first and then its own, and keeps a cache of its own in the target's KV role. One that takes several
    residual streams at once (DeepSeek-V4) is fed what stands before the last norm, where they are still apart."""

    Options = MtpOptions
    own_tap = "normed"
    _width = 0

    @classmethod
    def roles(cls, options: MtpOptions) -> Mapping[str, RoleSource]:
        return {DRAFT: RoleSource(architecture="{}.mtp", overrides={"mtp_module": options.module})}

    def states(self, sizing: Sizing) -> Sequence[State]:
        self._width = sizing.role(DRAFT).hidden
        return super().states(sizing)

    def bound(self, spec: Spec[Any], call: Callable[..., Any]) -> None:
        super().bound(spec, call)
        if isinstance(spec, EmbedSpec) and spec.width != self._width:
            self.own_tap = "last"

    def column(self, spec: TapSpec) -> int | None:
        return 0 if spec.point == self.own_tap else None
