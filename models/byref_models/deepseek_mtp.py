"""The multi-token-prediction module behind a DeepSeek model's layers, as a model of its own role. Knows no drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from byref.contract.specs import LinearSpec, NormSpec, Part
from byref_models.deepseek_v3 import DeepseekV3
from byref_models.deepseek_v32 import index_layout
from byref_models.indexer import LightningIndexer
from byref_models.mla import MLAttention

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask


def module_number(config: PretrainedConfig) -> int:
    """Which of the checkpoint's modules: `mtp_module` among the role's overrides, the first unless it is given."""
    return int(getattr(config, "mtp_module", 0))


class DeepseekMTP(DeepseekV3):
    """Row i has the token after position i and the hidden state at it, and its logits are of the token after that.

    The hidden state is the target's, or that of the module's own row before, after the last norm: what a tap at
    "normed" shows. Embedding and vocabulary projection are the target's (DeepSeek-V3 report, section 2.2).
    """

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        super().__init__(config, ask)
        self.input_width = width = config.hidden_size
        i = self.numbers(config).start
        name, eps = f"model.layers.{i}", config.rms_norm_eps
        token = NormSpec(role=ask.role, layer=i, name=f"{name}.enorm", width=width, eps=eps)
        self.token_norm = ask(self, "token_norm", token)
        before = NormSpec(role=ask.role, layer=i, name=f"{name}.hnorm", width=width, eps=eps)
        self.hidden_norm = ask(self, "hidden_norm", before)
        part = Part(f"{name}.eh_proj.weight", width)
        join = LinearSpec(role=ask.role, layer=i, name=f"{name}.eh_proj", fused=(part,), inputs=2 * width)
        self.join = ask(self, "join", join)

    def numbers(self, config: PretrainedConfig) -> range:
        first = config.num_hidden_layers + module_number(config)
        return range(first, first + 1)

    def norm_name(self, config: PretrainedConfig) -> str:
        return f"model.layers.{self.numbers(config).start}.shared_head.norm"

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        assert hidden is not None
        pair = torch.cat((self.token_norm(self.embed(ids)), self.hidden_norm(hidden)), -1)
        return self.run(self.join(pair), positions, ctx)


class DeepseekV32MTP(DeepseekMTP):
    """The same behind DeepSeek-V3.2: its layer has an indexer of its own."""

    layout: ClassVar[Literal["half", "interleaved"]] = "half"
    """See `index_layout`."""

    def attention(self, config: PretrainedConfig, ask: Ask, i: int) -> MLAttention:
        carried = bool(getattr(config, "index_share_for_mtp_iteration", False))
        indexer = LightningIndexer(config, ask, i, layout=index_layout(config, self.layout), carried=carried)
        return MLAttention(config, ask, i, indexer)


class GlmMoeDsaMTP(DeepseekV32MTP):
    """The same behind GLM-5, which may go on with the first draft step's selection."""

    layout: ClassVar[Literal["half", "interleaved"]] = "interleaved"
