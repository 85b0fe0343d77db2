"""DeepSeek-V4's attention: a window beside compressed entries, one tensor as key and value. Knows names; no cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from byref.contract.errors import ModelError
from byref.contract.sparse import CompressSpec, IndexSpec
from byref.contract.specs import (
    AttentionSpec,
    CompressedSpec,
    GroupedLinearSpec,
    LinearSpec,
    NormLinearSpec,
    NormSpec,
    Part,
    SelectionSpec,
)
from byref_models.hyper import unit
from byref_models.layers import rms_norm
from byref_models.rotary import rotary

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask
    from byref.contract.specs import RotarySpec

WINDOW, SELECTED, ALL = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
KINDS: Final = (WINDOW, SELECTED, ALL)


def kind_of(config: PretrainedConfig, i: int) -> str:
    """What layer `i` sees; the layers of draft modules see a window.

    Raises:
        ModelError: a kind that is not known.
    """
    kinds = config.layer_types
    kind = kinds[i] if i < len(kinds) else WINDOW
    if kind not in KINDS:
        raise ModelError(f"attention of kind {kind!r} is unknown", where=f"layer_types, layer {i}")
    return str(kind)


def turning(config: PretrainedConfig, role: str, i: int) -> RotarySpec:
    """The rotary embedding of layer `i`: layers with compressed entries have a base and a scaling of their own."""
    kind = "main" if kind_of(config, i) == WINDOW else "compress"
    return rotary(config, role, config.qk_rope_head_dim, kind, layout="interleaved")


class Folding:
    """One compressor of a layer: projections of the layer's normed input, and the call that folds them."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, name: str, width: int) -> None:
        kind = kind_of(config, i)
        overlap = kind == SELECTED
        norm = NormSpec(role=ask.role, layer=i, name=f"{name}.kv_norm", width=width, eps=config.rms_norm_eps)
        self.spec = CompressSpec(
            role=ask.role,
            layer=i,
            name=name,
            width=width,
            ratio=config.compress_rates[kind],
            overlap=overlap,
            bias=f"{name}.position_bias",
            norm=norm,
            rotary=turning(config, ask.role, i),
        )
        self.fold = ask(self, "fold", self.spec)
        raw = self.spec.raw_width
        self.parts = (Part(f"{name}.kv_proj.weight", raw), Part(f"{name}.gate_proj.weight", raw))

    def __call__(self, kv: Tensor, gate: Tensor, ctx: ForwardContext) -> None:
        self.fold(kv, gate, ctx)


class CompressedIndexer:
    """Chooses among the compressed entries of a layer, by keys that a second, narrower compressor makes."""

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int, name: str) -> None:
        self._heads, self._dim, self._turned = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
        self.keys = Folding(config, ask, i, name, self._dim)
        self.parts = (*self.keys.parts, Part(f"{name}.scorer.weights_proj.weight", self._heads))
        up = LinearSpec(
            role=ask.role,
            layer=i,
            name=f"{name}.q_b_proj",
            fused=(Part(f"{name}.q_b_proj.weight", self._heads * self._dim),),
            inputs=config.q_lora_rank,
        )
        self.up = ask(self, "up", up)
        self.rotate = ask(self, "rotate", turning(config, ask.role, i))
        select = IndexSpec(
            role=ask.role,
            layer=i,
            name=name,
            heads=self._heads,
            dim=self._dim,
            top_k=config.index_topk,
            ratio=self.keys.spec.ratio,
            keys=self.keys.spec.name,
        )
        self.select = ask(self, "select", select)

    def __call__(
        self, q_latent: Tensor, kv: Tensor, gate: Tensor, weights: Tensor, positions: Tensor, ctx: ForwardContext
    ) -> None:
        self.keys(kv, gate, ctx)
        q = self.up(q_latent).view(-1, self._heads, self._dim)
        self.rotate(q[..., -self._turned :], positions, ctx)
        self.select(q, None, weights, ctx)


class CompressedAttention:
    """Norm, projections, attention and grouped output projection of one layer.

    Key and value are one rotated tensor, so what a head gives is turned back by its row's position.
    """

    def __init__(self, config: PretrainedConfig, ask: Ask, i: int) -> None:
        name, role = f"model.layers.{i}.self_attn", ask.role
        kind, self._heads, self._dim = kind_of(config, i), config.num_attention_heads, config.head_dim
        self._turned, self._eps = config.qk_rope_head_dim, config.rms_norm_eps
        self.folding = None if kind == WINDOW else Folding(config, ask, i, f"{name}.compressor", self._dim)
        indexed = kind == SELECTED
        self.indexer = CompressedIndexer(config, ask, i, f"{name}.compressor.indexer") if indexed else None
        parts = [Part(f"{name}.q_a_proj.weight", config.q_lora_rank), Part(f"{name}.kv_proj.weight", self._dim)]
        parts += [*(self.folding.parts if self.folding else ()), *(self.indexer.parts if self.indexer else ())]
        self._sizes = [part.rows for part in parts]
        self.down = ask(self, "down", _down(config, role, i, tuple(parts)))
        self._ask_q_and_kv(config, ask, i)
        self.attend = ask(self, "attend", _attention(config, role, i, self.folding, indexed))
        self._ask_out(config, ask, name, i)

    def _ask_q_and_kv(self, config: PretrainedConfig, ask: Ask, i: int) -> None:
        name, role, rank = f"model.layers.{i}.self_attn", ask.role, config.q_lora_rank
        norm = NormSpec(role=role, layer=i, name=f"{name}.q_a_norm", width=rank, eps=self._eps)
        self.q_norm = ask(self, "q_norm", norm)
        part = Part(f"{name}.q_b_proj.weight", self._heads * self._dim)
        up = LinearSpec(role=role, layer=i, name=f"{name}.q_b_proj", fused=(part,), inputs=rank, shard="outputs")
        self.q_up = ask(self, "q_up", up)
        norm = NormSpec(role=role, layer=i, name=f"{name}.kv_norm", width=self._dim, eps=self._eps)
        self.kv_norm = ask(self, "kv_norm", norm)
        turn = turning(config, role, i)
        self.rotate = ask(self, "rotate", turn)
        self.turn_back = ask(self, "turn_back", replace(turn, name=f"{turn.name}.back", inverse=True))

    def _ask_out(self, config: PretrainedConfig, ask: Ask, name: str, i: int) -> None:
        inner = config.o_groups * config.o_lora_rank
        grouped = GroupedLinearSpec(
            role=ask.role,
            layer=i,
            name=f"{name}.o_a_proj",
            weight=Part(f"{name}.o_a_proj.weight", inner),
            groups=config.o_groups,
            inputs=self._heads * self._dim,
        )
        self.out_by_group = ask(self, "out_by_group", grouped)
        part = Part(f"{name}.o_b_proj.weight", config.hidden_size)
        out = LinearSpec(role=ask.role, layer=i, name=f"{name}.o_b_proj", fused=(part,), inputs=inner)
        self.out = ask(self, "out", out)

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        q_latent, kv, *more = self.down(x).split(self._sizes, -1)
        q_latent, kv = self.q_norm(q_latent), self.kv_norm(kv)
        if self.folding is not None:
            self.folding(more[0], more[1], ctx)
        if self.indexer is not None:
            self.indexer(q_latent, more[2], more[3], more[4], positions, ctx)
        q = unit(self.q_up(q_latent).view(-1, self._heads, self._dim), self._eps)
        self.rotate(q[..., -self._turned :], positions, ctx)
        self.rotate(kv[:, None, -self._turned :], positions, ctx)
        out = self.attend(q, kv, ctx)
        self.turn_back(out.view(-1, self._heads, self._dim)[..., -self._turned :], positions, ctx)
        return self.out(self.out_by_group(out))


def _down(config: PretrainedConfig, role: str, i: int, parts: tuple[Part, ...]) -> NormLinearSpec:
    name = f"model.layers.{i}.self_attn.down"
    linear = LinearSpec(role=role, layer=i, name=name, fused=parts, inputs=config.hidden_size)
    norm = rms_norm(config, role, i, "input_layernorm")
    return NormLinearSpec(role=role, layer=i, name=name, norm=norm, linear=linear)


def _attention(config: PretrainedConfig, role: str, i: int, folding: Folding | None, indexed: bool) -> AttentionSpec:
    name = f"model.layers.{i}.self_attn"
    compressed = CompressedSpec(source=folding.spec.name, ratio=folding.spec.ratio) if folding else None
    return AttentionSpec(
        role=role,
        layer=i,
        name=name,
        heads=config.num_attention_heads,
        kv_heads=1,
        key_dim=config.head_dim,
        value_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        form="mla",
        window=config.sliding_window,
        sinks=f"{name}.sinks",
        selection=SelectionSpec(source=i, top_k=config.index_topk) if indexed else None,
        compressed=compressed,
    )
