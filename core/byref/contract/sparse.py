"""What layers with an indexer or a compressor ask for. Knows widths and ratios; not who keeps what is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from byref.contract.calls import Compress, Select
from byref.contract.specs import NormSpec, RotarySpec, Spec


@dataclass(frozen=True, kw_only=True)
class IndexSpec(Spec[Select]):
    """The selection half of an indexer (the projections are the model's): see DeepSeek-V3.2.

    A row's score of a key is the sum over heads of weight * relu(q . k), times (heads * dim) ** -0.5. The `top_k` best
    of all keys of the request that the row may see are chosen; of equal scores the lowest position.
    """

    heads: int
    dim: int
    top_k: int
    shared: bool = False
    """Reuses the previous full layer's selection."""
    carried: bool = False
    """In draft steps after the first, the selection of the row that a row continues is used again."""
    ratio: int = 1
    """Tokens of one key."""
    keys: str | None = None
    """Name of the compressor whose entries are the keys."""


@dataclass(frozen=True, kw_only=True)
class CompressSpec(Spec[Compress]):
    """Compressed entries, one per `ratio` tokens: see DeepSeek-V4.

    Each element of an entry is the sum of the window's kv, weighted by the softmax over the window of gate + bias; then
    the entry is normed, and its tail rotated by the position of the window's first token. With `overlap` the raw width
    is twice `width`: the first half of a row's kv and gate belongs to the entry after its own.
    """

    width: int
    ratio: int
    overlap: bool
    bias: str
    """Checkpoint name: [ratio, raw width]."""
    norm: NormSpec
    rotary: RotarySpec

    @property
    def raw_width(self) -> int:
        """Elements of one row's kv, and of its gate."""
        return 2 * self.width if self.overlap else self.width

    @property
    def pool_name(self) -> str:
        """The pool of its entries, made by who answers it."""
        return f"{self.name}.entries"
