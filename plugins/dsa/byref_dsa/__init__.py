"""Sparse attention as a plugin: what an indexer selects, and what a compressor made. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.roles import KV_POOLS, KV_REWIND

if TYPE_CHECKING:
    from byref.contract.roles import Site, Sizing
    from byref.contract.specs import Spec
    from byref.contract.state import State
    from byref.contract.step import Step

__all__ = ["DSA", "Options"]


class Options(BaseModel):
    """The table `[plugins.dsa]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index_keys: Literal["auto", "fp8"] = "auto"
    """How index keys are stored: as they are computed, or as fp8 (e4m3) with a scale per 128 elements. Index queries
    are rounded alike, and both are rotated by a Hadamard matrix before, so that no element stands out."""
    kernels: Literal["auto", "torch", "triton"] = "auto"
    """What computes scores and attention: Triton kernels on CUDA, plain torch elsewhere."""


class DSA(Plugin[Options]):
    """Answers indexers, compressors, and the attention that sees what they keep."""

    info = PluginInfo(
        api_version=API_VERSION,
        provides=("bind.IndexSpec", "bind.CompressSpec"),
        requires=(KV_POOLS, KV_REWIND),
    )
    Options = Options

    @hookimpl
    def refine(self, specs: Sequence[Spec[Any]]) -> Sequence[Spec[Any]]:
        from byref_dsa.layout import Layout

        self._layout = Layout.of(specs, self.options.index_keys)
        return [*specs, *self._layout.pools]

    @hookimpl
    def create_states(self, sizing: Sizing) -> Sequence[State]:
        from byref_dsa.states import SlotMappings, TopKShare

        widths = self._layout.widths
        return [SlotMappings(), *(TopKShare(role, most, sizing) for role, most in widths.items())]

    @hookimpl
    def bind(self, spec: Spec[Any], site: Site) -> Callable[..., Any] | None:
        from byref.contract.sparse import CompressSpec, IndexSpec
        from byref.contract.specs import AttentionSpec

        if isinstance(spec, IndexSpec):
            from byref_dsa.indexing import answer_index

            return answer_index(spec, site, self._layout, self.options)
        if isinstance(spec, CompressSpec):
            from byref_dsa.compression import answer_compress

            return answer_compress(spec, site)
        if isinstance(spec, AttentionSpec) and (spec.selection is not None or spec.compressed is not None):
            from byref_dsa.attention import answer_attention

            return answer_attention(spec, site, self._layout, self.options)
        return None

    @hookimpl
    def prepare_step(self, step: Step) -> None:
        self._layout.check(step)
