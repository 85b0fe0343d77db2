"""The projections of DeepSeek's indexer. Knows the checkpoint's names; must not know what is done with the scores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from byref.contract.sparse import IndexSpec
from byref.contract.specs import LayerNormSpec, LinearSpec, Part, SelectionSpec
from byref_models.rotary import rotary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask

KEY_EPS = 1e-6
"""Of the keys' LayerNorm, whatever the configuration says of the other norms."""


class LightningIndexer:
    """Index queries from the latent of the layer's queries, one index key and a weight per head from its normed input.

    The first elements of each head are rotated, the attention's last ones.

    Args:
        config: of the model.
        ask: the model's.
        i: which layer.
        layout: how rotary elements are paired; DeepSeek and GLM differ, so the caller says.
        carried: see `IndexSpec`.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        ask: Ask,
        i: int,
        *,
        layout: Literal["half", "interleaved"],
        carried: bool = False,
    ) -> None:
        name, role = f"model.layers.{i}.self_attn.indexer", ask.role
        self._heads, self._dim, self._turned = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
        self.parts = (Part(f"{name}.wk.weight", self._dim), Part(f"{name}.weights_proj.weight", self._heads))
        self.selection = SelectionSpec(source=i, top_k=config.index_topk)
        rows = self._heads * self._dim
        up = LinearSpec(
            role=role,
            layer=i,
            name=f"{name}.wq_b",
            fused=(Part(f"{name}.wq_b.weight", rows),),
            inputs=config.q_lora_rank,
        )
        self.up = ask(self, "up", up)
        norm = LayerNormSpec(role=role, layer=i, name=f"{name}.k_norm", width=self._dim, eps=KEY_EPS)
        self.norm = ask(self, "norm", norm)
        turn = replace(rotary(config, role, self._turned, layout=layout), name="rotary.index")
        self.rotate = ask(self, "rotate", turn)
        select = IndexSpec(
            role=role,
            layer=i,
            name=name,
            heads=self._heads,
            dim=self._dim,
            top_k=config.index_topk,
            carried=carried,
        )
        self.select = ask(self, "select", select)

    def __call__(self, q_latent: Tensor, own: Tensor, positions: Tensor, ctx: ForwardContext) -> None:
        q = self.up(q_latent).view(-1, self._heads, self._dim)
        k = self.norm(own[:, : self._dim])
        self.rotate(q[..., : self._turned], positions, ctx)
        self.rotate(k[:, None, : self._turned], positions, ctx)
        self.select(q, k, own[:, self._dim :], ctx)


class SharedSelection:
    """In place of an indexer: the layer sees what layer `source` selected."""

    parts: tuple[Part, ...] = ()

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, source: int) -> None:
        self.selection = SelectionSpec(source=source, top_k=config.index_topk)
        select = IndexSpec(
            role=ask.role,
            layer=i,
            name=f"model.layers.{i}.self_attn.indexer",
            heads=config.index_n_heads,
            dim=config.index_head_dim,
            top_k=config.index_topk,
            shared=True,
        )
        self.select = ask(self, "select", select)

    def __call__(self, q_latent: Tensor, own: Tensor, positions: Tensor, ctx: ForwardContext) -> None:
        self.select(None, None, None, ctx)
