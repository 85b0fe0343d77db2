"""The KV cache in pages, as a plugin. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from byref import API_VERSION, Plugin, PluginInfo, hookimpl
from byref.contract.roles import KV_POOLS, KV_PREFIX, KV_REWIND

if TYPE_CHECKING:
    from byref.contract.context import ForwardContext
    from byref.contract.roles import Sizing
    from byref.contract.state import State
    from byref.contract.step import Step

__all__ = ["Options", "PagedKVPlugin"]


class Options(BaseModel):
    """The table `[plugins.paged_kv]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    page_size: int = Field(default=16, ge=1)
    """Tokens of one page."""
    num_pages: int = Field(default=0, ge=0)
    """Pages there are, the null page not counted; 0 takes as many as hold the engine's `kv_tokens`."""
    prefix_cache: bool = True
    """Keep the pages of finished prompts, and share them with requests that begin alike."""


class PagedKVPlugin(Plugin[Options]):
    """Takes the KV role with pages of fixed size, shared by equal prefixes."""

    info = PluginInfo(api_version=API_VERSION, provides=(KV_REWIND, KV_POOLS, KV_PREFIX))
    Options = Options

    @hookimpl
    def create_states(self, sizing: Sizing) -> Sequence[State]:
        from byref_paged_kv.kv import PagedKV

        self._kv = PagedKV(sizing, self.options)
        return [self._kv]

    @hookimpl
    def prepare_step(self, step: Step) -> None:
        self._kv.publish_tables()

    @hookimpl
    def prepare_forward(self, ctx: ForwardContext) -> None:
        self._kv.refill(ctx)
