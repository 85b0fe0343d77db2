"""The target drafts for itself, with cheaper weights or fewer layers. Knows specs and answers; no checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from byref.contract.errors import ConfigError
from byref.contract.plugin import RoleSource
from byref.contract.roles import DRAFT, TARGET, Site
from byref.contract.specs import (
    EmbedSpec,
    GatedMLPSpec,
    GroupedLinearSpec,
    HashMoESpec,
    LayerNormSpec,
    LinearSpec,
    MoESpec,
    NormLinearSpec,
    NormSpec,
    Spec,
    TapSpec,
    TensorSpec,
)
from byref_spec_decoding.drafter import Draft, Drafter, Round
from byref_spec_decoding.rollout import roll_out

STATELESS = (
    EmbedSpec,
    GatedMLPSpec,
    GroupedLinearSpec,
    HashMoESpec,
    LayerNormSpec,
    LinearSpec,
    MoESpec,
    NormLinearSpec,
    NormSpec,
    TensorSpec,
)
"""What a layer of the target may lend to the same layer of the drafter: it holds weights only."""


class ItselfOptions(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `self`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: int | None = Field(default=None, ge=1)
    """How many of the target's layers, from the first on; all unless given."""
    left_out: tuple[int, ...] = ()
    """Numbers of layers that it goes without."""
    weights: Literal["int4", "int8", "target"] = "int4"
    """int4 and int8 keep a second, smaller copy of the projections; target shares the target's own."""


class Itself(Drafter):
    """Self-speculation: one checkpoint is enough (Zhang et al. 2023, "Draft & Verify", with layers left out)."""

    Options = ItselfOptions
    runs_forwards = True
    soft = True

    def __init__(self, options: ItselfOptions, most: int, *, tree: bool) -> None:
        super().__init__(options, most, tree=tree)
        self._answers: dict[tuple[str, str, int, str], Callable[..., Any]] = {}

    @classmethod
    def roles(cls, options: ItselfOptions) -> Mapping[str, RoleSource]:
        overrides: dict[str, Any] = {"left_out": options.left_out}
        if options.layers is not None:
            overrides["num_hidden_layers"] = options.layers
        return {DRAFT: RoleSource(overrides=overrides)}

    def seen(self, specs: Sequence[Spec[Any]]) -> None:
        """Refuse numbers of layers that there are not."""
        layers = sum(isinstance(spec, TapSpec) and spec.role == TARGET and spec.point == "layer" for spec in specs)
        kept = set(range(min(self.options.layers or layers, layers))) - set(self.options.left_out)
        if not kept or not set(self.options.left_out) <= set(range(layers)) or (self.options.layers or 0) > layers:
            raise ConfigError(
                f"layers {self.options.layers} and left_out {self.options.left_out} do not fit the target's {layers}",
                where="[plugins.spec_decoding.options]",
                hint=f"layers from 1 to {layers}, left_out from 0 to {layers - 1}, and not all of them",
            )

    def bound(self, spec: Spec[Any], call: Callable[..., Any]) -> None:
        if spec.role == TARGET and isinstance(spec, STATELESS):
            self._answers[spec.identity] = call

    def bind(self, spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
        """The drafter's weights: the target's, or those of its projections in fewer bits."""
        if spec.role != DRAFT or not isinstance(spec, STATELESS):
            return None
        own = self._answers.get(replace(spec, role=TARGET).identity)
        if self.options.weights != "target":
            if isinstance(spec, LinearSpec):
                from byref_spec_decoding.lowbit import answer_linear

                return answer_linear(self.options.weights, spec, site, own)
            if isinstance(spec, NormLinearSpec | GatedMLPSpec):
                return None  # core composes them from the projections above
        return own

    def propose(self, round: Round) -> Mapping[str, Draft]:
        return roll_out(round, self.sizing)
