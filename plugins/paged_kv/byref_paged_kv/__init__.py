"""The KV cache in pages, as a plugin. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.roles import KV_POOLS, KV_PREFIX, KV_REWIND

if TYPE_CHECKING:
    from byref.contract.calls import Attend
    from byref.contract.context import ForwardContext
    from byref.contract.requests import Reason, Request
    from byref.contract.roles import Site, Sizing
    from byref.contract.specs import Spec
    from byref.contract.state import State
    from byref.contract.step import Step
    from byref_paged_kv.kv import PagedKV

__all__ = ["Options", "PagedKVPlugin"]


class Options(BaseModel):
    """The table `[plugins.paged_kv]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page_size: int = Field(default=16, ge=1)
    """Tokens of one page."""
    num_pages: int = Field(default=0, ge=0)
    """Pages there are, the null page not counted; 0 takes as many as hold the engine's `kv_tokens`."""
    kv_memory: Annotated[float, Field(gt=0, le=1)] | ByteSize | None = None
    """Memory for pages instead of a number of them: bytes, as in "2GiB", or a fraction of what is free."""
    prefix_cache: bool = True
    """Keep the pages of finished prompts, and share them with requests that begin alike."""
    checkpoints: int = Field(default=64, ge=0)
    """Where pools keep a state per request: copies of states kept so that prefixes can be found; 0 finds none."""
    checkpoint_pages: int = Field(default=32, ge=0)
    """Pages between two such copies, besides the one at the end of each prompt; 0 keeps that one alone."""
    swap_memory: ByteSize | None = None
    """Host memory for the entries of preempted requests, as in "1GiB"; without it they are computed again."""
    dtype: Literal["auto", "int8", "fp8"] = "auto"
    """How keys and values are stored: auto as they are computed, int8 or fp8 (e4m3) with one scale per head."""
    attention: Literal["auto", "gather", "views", "triton"] = "auto"
    """How attention reads pages: copied first (gather), in place on a CPU (views), or by Triton kernels on CUDA."""

    @model_validator(mode="after")
    def _sized_once(self) -> Self:
        if self.num_pages and self.kv_memory is not None:
            raise ValueError("num_pages and kv_memory both say how much there is: give one of them")
        return self


Given = Options
"""The class under a name that the plugin's attribute does not hide."""


class PagedKVPlugin(Plugin[Options]):
    """Takes the KV role with pages of fixed size, shared by equal prefixes."""

    info = PluginInfo(api_version=API_VERSION, provides=(KV_REWIND, KV_POOLS, KV_PREFIX))
    Options = Options

    def __init__(self, name: str, options: Given) -> None:
        super().__init__(name, options)
        if options.dtype != "auto":
            self.info = replace(self.info, lossless=False)

    @hookimpl
    def refine(self, specs: Sequence[Spec[Any]]) -> Sequence[Spec[Any]] | None:
        if self.options.dtype == "auto":
            return None
        from byref_paged_kv.codecs import quantise

        return quantise(specs, self.options.dtype)

    @hookimpl
    def create_states(self, sizing: Sizing) -> Sequence[State]:
        from byref_paged_kv.kv import PagedKV

        self._kv = PagedKV(sizing, self.options)
        return [self._kv]

    @hookimpl
    def bind(self, spec: Spec[Any], site: Site) -> Attend | None:
        from byref.contract.specs import AttentionSpec

        if not isinstance(spec, AttentionSpec) or spec.selection is not None or spec.compressed is not None:
            return None
        from byref_paged_kv.attention import answer

        return answer(self.options.attention, spec, site, self._kv)

    @property
    def kv(self) -> PagedKV:
        """The KV of the engine that runs: its figures, and `listen` for events of the prefix cache."""
        return self._kv

    def figures(self) -> Mapping[str, float]:
        return self._kv.figures()

    @hookimpl
    def request_released(self, request: Request, reason: Reason) -> None:
        if reason.value == "preempted":
            self._kv.preempted(request)

    @hookimpl
    def prepare_step(self, step: Step) -> None:
        self._kv.publish_tables()

    @hookimpl
    def prepare_forward(self, ctx: ForwardContext) -> None:
        self._kv.refill(ctx)
