"""How each GGUF architecture names and stores what transformers names and stores otherwise. The only table of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import gguf

from byref.contract.errors import ModelError
from byref.loading.gguf_rope import FACTORS

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
_QK_NORM = ("self_attn.q_norm", "self_attn.k_norm")


@dataclass(frozen=True, slots=True)
class Layout:
    """One architecture. Names are transformers', without `model.layers.N.` and without suffix."""

    layer: tuple[str, ...] = _LAYER
    interleaved: Mapping[str, str] = field(default_factory=dict)
    """Projections whose rows are stored with the two halves of each head interleaved, and the metadata
    key that counts their heads."""
    derived: frozenset[str] = frozenset({FACTORS})
    """Stored tensors that are no parameters: the configuration speaks for them."""


_HALVES = {"self_attn.q_proj": "attention.head_count", "self_attn.k_proj": "attention.head_count_kv"}

LAYOUTS: dict[str, Layout] = {
    "llama": Layout(interleaved=_HALVES),
    "qwen2": Layout(),
    "qwen3": Layout(layer=(*_LAYER, *_QK_NORM)),
}


def layout_of(architecture: str, path: str) -> Layout:
    """The layout of a GGUF architecture.

    Raises:
        ModelError: nobody knows it; the known ones are listed.
    """
    if architecture not in LAYOUTS:
        raise ModelError(
            f"nobody knows how GGUF files of architecture {architecture!r} name their tensors",
            where=path,
            hint=f"one of {', '.join(sorted(LAYOUTS))}, or the same model as a Hugging Face folder",
        )
    return LAYOUTS[architecture]


def hugging_face_names(architecture: str, layout: Layout, blocks: int) -> dict[str, str]:
    """Names in the file -> names in transformers, both without suffix."""
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(arch, blocks)
    names = [*_OUTER, *(f"model.layers.{i}.{part}" for i in range(blocks) for part in layout.layer)]
    return {stored: name for name in names if (stored := table.get_name(name))}
