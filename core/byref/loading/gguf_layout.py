"""How each GGUF architecture names and stores what transformers names and stores otherwise. The only table of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import gguf

from byref.contract.errors import ModelError
from byref.loading.gguf_header import GGUFHeader, TensorInfo
from byref.loading.gguf_rope import FACTORS, LONG_FACTORS, SHORT_FACTORS

_OUTER = ("model.embed_tokens", "model.norm", "lm_head")
_LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_ATTENTION = _LAYER[:6]
_QK_NORM = ("self_attn.q_norm", "self_attn.k_norm")


@dataclass(frozen=True, slots=True)
class Layout:
    """One architecture. Names are transformers', without `model.layers.N.` and without suffix."""

    layer: tuple[str, ...] = _LAYER
    interleaved: Mapping[str, str] = field(default_factory=dict)
    """Projections whose rows are stored with the two halves of each head interleaved, and the metadata
    key that counts their heads."""
    norm_shift: float = 0.0
    """What the file adds to the weights of norms."""
    derived: frozenset[str] = frozenset({FACTORS, LONG_FACTORS, SHORT_FACTORS})
    """Stored tensors that are no parameters: the configuration speaks for them."""


_HALVES = {"self_attn.q_proj": "attention.head_count", "self_attn.k_proj": "attention.head_count_kv"}

LAYOUTS: dict[str, Layout] = {
    "gemma3": Layout(
        layer=(*_LAYER, *_QK_NORM, "pre_feedforward_layernorm", "post_feedforward_layernorm"), norm_shift=1.0
    ),
    "llama": Layout(interleaved=_HALVES),
    "mixtral": Layout(
        layer=(*_ATTENTION, "block_sparse_moe.gate", *(f"block_sparse_moe.experts.w{i}" for i in (1, 2, 3))),
        interleaved=_HALVES,
    ),
    "phi3": Layout(
        layer=(
            "input_layernorm",
            "self_attn.qkv_proj",
            "self_attn.o_proj",
            "post_attention_layernorm",
            "mlp.gate_up_proj",
            "mlp.down_proj",
        )
    ),
    "qwen2": Layout(),
    "qwen3": Layout(layer=(*_LAYER, *_QK_NORM)),
    "qwen3moe": Layout(
        layer=(*_ATTENTION, *_QK_NORM, "mlp.gate", *(f"mlp.experts.{x}_proj" for x in ("gate", "up", "down")))
    ),
}


def layout_of(header: GGUFHeader) -> Layout:
    """The layout of a GGUF file.

    Raises:
        ModelError: nobody knows it; the known ones are listed.
    """
    if header.family not in LAYOUTS:
        raise ModelError(
            f"nobody knows how GGUF files of architecture {header.family!r} name their tensors",
            where=header.path,
            hint=f"one of {', '.join(sorted(LAYOUTS))}, or the same model as a Hugging Face folder",
        )
    return LAYOUTS[header.family]


def hugging_face_tensors(header: GGUFHeader, layout: Layout, blocks: int) -> dict[str, TensorInfo]:
    """The file's tensors by transformers' names. One without such a name keeps its own: it is missed by nobody.

    Experts that lie in one tensor become one each, "experts.w1" those of "experts.0.w1", "experts.1.w1", ...
    """
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == header.architecture)
    table = gguf.get_tensor_name_map(arch, blocks)
    names = [*_OUTER, *(f"model.layers.{i}.{part}" for i in range(blocks) for part in layout.layer)]
    known = {stored: name for name in names if (stored := table.get_name(name))}
    found: dict[str, TensorInfo] = {}
    for info in header.tensors.values():
        stem, dot, suffix = info.name.rpartition(".")
        name = known.get(stem, stem) + dot + suffix
        if ".experts." in name:
            found |= {name.replace(".experts.", f".experts.{e}."): one for e, one in enumerate(info.split())}
        elif info.name not in layout.derived:
            found[name] = info
    return found
