"""GLM-5: DeepSeek-V3.2's shape, with layers that share the selection of one before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from byref.contract.errors import ModelError
from byref_models.deepseek_v3 import DeepseekV3
from byref_models.deepseek_v32 import index_layout
from byref_models.indexer import LightningIndexer, SharedSelection
from byref_models.mla import MLAttention

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from byref.contract.model import Ask


class GlmMoeDsa(DeepseekV3):
    """`GlmMoeDsaForCausalLM` of transformers."""

    def attention(self, config: PretrainedConfig, ask: Ask, i: int) -> MLAttention:
        source = source_of(config, i)
        if source != i:
            return MLAttention(config, ask, i, SharedSelection(config, ask, i, source))
        layout = index_layout(config, "interleaved")
        return MLAttention(config, ask, i, LightningIndexer(config, ask, i, layout=layout))


def source_of(config: PretrainedConfig, i: int) -> int:
    """The layer whose selection layer `i` sees: itself, or the last one before it that has an indexer.

    Raises:
        ModelError: there is none, or the layer is of a kind that is not known.
    """
    kinds = config.indexer_types
    where = f"indexer_types, layer {i}"
    if kinds[i] not in {"full", "shared"}:
        raise ModelError(f"an indexer of kind {kinds[i]!r} is unknown", where=where, hint="full or shared")
    full = [j for j in range(i + 1) if kinds[j] == "full"]
    if not full:
        raise ModelError("it shares a selection that no layer before it makes", where=where, hint="begin with full")
    return full[-1]
