"""DeepSeek-V3.2: DeepSeek-V3 whose layers attend to what an indexer selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref_models.deepseek_v3 import DeepseekV3
from byref_models.indexer import LightningIndexer
from byref_models.mla import MLAttention

if TYPE_CHECKING:
    from typing import Literal

    from transformers import PretrainedConfig

    from byref.contract.model import Ask


class DeepseekV32(DeepseekV3):
    """`DeepseekV32ForCausalLM` of transformers."""

    def attention(self, config: PretrainedConfig, ask: Ask, i: int) -> MLAttention:
        return MLAttention(config, ask, i, LightningIndexer(config, ask, i, layout=index_layout(config, "half")))


def index_layout(config: PretrainedConfig, published: Literal["half", "interleaved"]) -> Literal["half", "interleaved"]:
    """How the indexer's rotary elements are paired: as the configuration says, or else as published models do it."""
    told = getattr(config, "indexer_rope_interleave", None)
    if told is None:
        return published
    return "interleaved" if told else "half"
