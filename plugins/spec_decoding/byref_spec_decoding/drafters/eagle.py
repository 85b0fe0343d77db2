"""EAGLE heads: which hidden states they are fed, whose embedding they use, and what their tokens mean. No layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from byref.contract.errors import ModelError
from byref.contract.plugin import RoleSource
from byref.contract.roles import DRAFT, TARGET, Site
from byref.contract.specs import EmbedSpec, LinearSpec, Spec, TapSpec, of_kind
from byref_spec_decoding.fed import FedDrafter
from byref_spec_decoding.heads import HEADS, FeatureSpec


class EagleOptions(BaseModel):
    """`[plugins.spec_decoding.options]` of the drafter `eagle`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1)
    """The head's checkpoint."""
    version: Literal[1, 3] = 3
    """1 also stands for EAGLE-2, whose heads are the same."""
    branches: int = Field(default=3, ge=1)
    """Of a tree: so many tokens are tried after each node, and so many nodes of a layer are continued."""


class Eagle(FedDrafter):
    """EAGLE (Li et al. 2024) and EAGLE-3 (Li et al. 2025), from the layouts that their authors publish."""

    Options = EagleOptions
    trees = True

    def __init__(self, options: EagleOptions, most: int, *, tree: bool) -> None:
        super().__init__(options, most, tree=tree)
        self.branches = options.branches
        self._taps: dict[tuple[str, int], int] = {}

    @classmethod
    def roles(cls, options: EagleOptions) -> Mapping[str, RoleSource]:
        return {DRAFT: RoleSource(path=options.model, architecture=f"eagle{options.version}")}

    def architectures(self) -> Mapping[str, str]:
        return HEADS

    def seen(self, specs: Sequence[Spec[Any]]) -> None:
        """Settle which of the target's hidden states stand in which columns."""
        feature = next(spec for spec in specs if isinstance(spec, FeatureSpec) and spec.role == DRAFT)
        taps = [spec for spec in of_kind(specs, TapSpec) if spec.role == TARGET]
        layers, width = sum(tap.point == "layer" for tap in taps), taps[0].width
        embed = next(spec for spec in of_kind(specs, EmbedSpec) if spec.role == TARGET)
        self._scaled = embed.scale != 1.0
        wide = len(feature.points(layers)) * width + (width if feature.last else 0)
        if feature.linear.inputs != wide:
            self._refuse(f"wants {feature.linear.inputs} elements of hidden states, and the target gives {wide}")
        self._taps = {}
        for i, point in enumerate(feature.points(layers)):
            if point not in {(tap.point, tap.layer) for tap in taps}:
                raise ModelError(
                    f"the head is fed by the input of layer {point[1] + 1}, and the target has {layers} layers",
                    where=self.options.model,
                    hint="take the head that was trained for this target",
                )
            self._taps[point] = i * width

    def column(self, spec: TapSpec) -> int | None:
        return self._taps.get((spec.point, spec.layer))

    def bound(self, spec: Spec[Any], call: Callable[..., Any]) -> None:
        super().bound(spec, call)
        if isinstance(spec, LinearSpec) and spec.role == TARGET and spec.name == "lm_head":
            self._head = call

    def bind(self, spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
        """The target's embedding and vocabulary projection where the head has none of its own."""
        if isinstance(spec, FeatureSpec):
            return site.resolve(spec.linear)  # type: ignore[no-any-return]
        if spec.role == DRAFT and isinstance(spec, EmbedSpec):
            if site.parameters.has(f"{spec.name}.weight"):
                return None
            if self._scaled:
                self._refuse("has no embedding of its own, and the target's gives scaled rows")
            return self._embed
        if spec.role == DRAFT and isinstance(spec, LinearSpec) and spec.name == "lm_head":
            if not site.parameters.has("lm_head.weight"):
                return self._head
            self.ids = self._read_maps(spec.outputs, site)
        return super().bind(spec, site)

    def _read_maps(self, drafted: int, site: Site) -> torch.Tensor | None:
        """The target's id of every draft token, from the two maps that the checkpoint carries, which must agree."""
        vocabulary, has = site.sizing.role(TARGET).vocabulary, site.parameters.has
        if drafted == vocabulary and not has("d2t"):
            return None
        if not (has("d2t") and has("t2d")):
            missing = "d2t" if not has("d2t") else "t2d"
            self._refuse(f"has {drafted} tokens of the target's {vocabulary}, and no tensor {missing!r}")
        ids = site.parameters.load(["d2t"], (drafted,), torch.int64) + torch.arange(drafted, device=site.sizing.device)
        known = site.parameters.load(["t2d"], (vocabulary,), torch.bool)
        if not torch.equal(ids, known.nonzero().squeeze(-1)):
            self._refuse("has maps d2t and t2d that name different tokens of the target")
        return ids

    def _refuse(self, what: str) -> None:
        raise ModelError(f"the head {what}", where=self.options.model, hint="take the files of a head for this target")
