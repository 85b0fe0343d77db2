"""What layers call: the protocol of each answer to a spec. Knows shapes; must not know who answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from byref.contract.context import ForwardContext


class Project(Protocol):
    """x [rows, inputs] -> [rows, outputs], plus `residual` [rows, outputs] where given."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


class Apply(Protocol):
    """x [rows, width] -> [rows, width]."""

    def __call__(self, x: Tensor) -> Tensor: ...


class Lookup(Protocol):
    """ids [rows] int64 -> [rows, width]."""

    def __call__(self, ids: Tensor) -> Tensor: ...


class Rotate(Protocol):
    """Rotates x [rows, heads, dim] by its rows' positions, in place. Calls of one spec within a forward have the same
    positions."""

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> None: ...


class Attend(Protocol):
    """Writes the rows' entries and attends: q [rows, heads, key_dim], kv [rows, entry width] ->
    [rows, heads * value_dim]. An mha entry is every head's key, then every head's value; an mla entry is
    the latent (also the value), then the rotary part."""

    def __call__(self, q: Tensor, kv: Tensor, ctx: ForwardContext) -> Tensor: ...


class AttendFused(Protocol):
    """qkv [rows, (heads + 2 * kv_heads) * dim] before rotation -> [rows, heads * dim]. May write into qkv."""

    def __call__(self, qkv: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor: ...


class AttendLatent(Protocol):
    """q [rows, heads, plain_dim + rotary dim] before rotation, latent [rows, value_dim + rotary dim] before its norm
    and rotation -> [rows, heads * head_value_dim]. May write into both."""

    def __call__(self, q: Tensor, latent: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor: ...


class Mix(Protocol):
    """x [rows, width] of the tokens ids [rows] int64 -> [rows, width], plus `residual` where given."""

    def __call__(self, x: Tensor, ids: Tensor, residual: Tensor | None = None) -> Tensor: ...


class Lend(Protocol):
    """A tensor of the checkpoint, the same at every call."""

    def __call__(self) -> Tensor: ...


class Narrow(Protocol):
    """hidden [rows, width] -> [logit rows, width]."""

    def __call__(self, hidden: Tensor, ctx: ForwardContext) -> Tensor: ...


class Take(Protocol):
    """Is shown hidden [rows, width]; keeps no reference to it after the call."""

    def __call__(self, hidden: Tensor, ctx: ForwardContext) -> None: ...


class Select(Protocol):
    """Chooses what a layer's attention sees: index queries [rows, heads, dim], index keys [rows, dim], weights
    [rows, heads], rotated and not scaled. May write into q and k. The selection stays in the answering plugin's state;
    a layer without an indexer passes nothing, one whose keys are compressed passes none."""

    def __call__(self, q: Tensor | None, k: Tensor | None, weights: Tensor | None, ctx: ForwardContext) -> None: ...


class Compress(Protocol):
    """Folds kv and gate, each [rows, raw width], into the compressed entries of their windows."""

    def __call__(self, kv: Tensor, gate: Tensor, ctx: ForwardContext) -> None: ...


class Codec(Protocol):
    """How a pool stores its values. `width` and `dtype` are of what is stored."""

    dtype: torch.dtype

    def width(self, width: int) -> int:
        """Stored elements for `width` values."""

    def encode(self, values: Tensor) -> Tensor:
        """values [n, width] -> [n, stored width] of `dtype`."""

    def decode(self, stored: Tensor) -> Tensor:
        """[n, stored width] -> values [n, width] in the pool's dtype."""
