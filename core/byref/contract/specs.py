"""What a layer asks the binder for. A spec names a callable; it holds no tensor and no module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from byref.contract.calls import (
    Apply,
    Attend,
    AttendFused,
    AttendLatent,
    Codec,
    Lend,
    Lookup,
    Mix,
    Narrow,
    Project,
    Rotate,
    Take,
)

if TYPE_CHECKING:
    import torch

C = TypeVar("C")
S = TypeVar("S", bound="Spec[Any]")


@dataclass(frozen=True, kw_only=True)
class Spec(Generic[C]):
    """Asks for a callable of protocol `C`.

    `role`, `layer` and `name` with the class identify it: `refine` may replace a spec by one of the same
    identity and may not drop one.
    """

    name: str
    """The checkpoint's own name of the thing, e.g. `model.layers.3.self_attn`."""
    role: str = "target"
    layer: int = -1
    """Index of the layer; -1 outside the layers."""

    @property
    def identity(self) -> tuple[str, str, int, str]:
        """Class, role, layer and name."""
        return (type(self).__name__, self.role, self.layer, self.name)

    def parts(self) -> Iterator[Spec[Any]]:
        """The finer specs that core composes the default answer from, nested ones included."""
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Spec):
                yield value
                yield from value.parts()


def rewrite(specs: Sequence[Spec[Any]], kind: type[S], edit: Callable[[S], S]) -> list[Spec[Any]]:
    """`specs` with every spec of class `kind` edited, nested ones too. The usual body of `refine`."""

    def visit(spec: Spec[Any]) -> Spec[Any]:
        nested = {f.name: getattr(spec, f.name) for f in fields(spec) if isinstance(getattr(spec, f.name), Spec)}
        changed: dict[str, Any] = {name: new for name, old in nested.items() if (new := visit(old)) is not old}
        spec = replace(spec, **changed) if changed else spec
        return edit(spec) if isinstance(spec, kind) else spec

    return [visit(spec) for spec in specs]


@dataclass(frozen=True)
class Part:
    """One checkpoint tensor within a fused projection: its name and its number of output rows."""

    name: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class LinearSpec(Spec[Project]):
    """y = W x (+ b), the parts' outputs side by side."""

    fused: tuple[Part, ...]
    inputs: int
    bias: bool = False
    shard: Literal["none", "outputs", "inputs"] = "none"
    """Which side tensor parallelism may split."""
    narrow: bool = False
    """Whether its rows are logit rows rather than all rows of the forward."""
    twin: str | None = None
    """Checkpoint name of a second copy of the weight. Where it is there it must be equal."""

    @property
    def outputs(self) -> int:
        return sum(part.rows for part in self.fused)


@dataclass(frozen=True, kw_only=True)
class EmbedSpec(Spec[Lookup]):
    """Rows of the table `name`.weight, times `scale` as the engine's dtype holds it."""

    rows: int
    width: int
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NormSpec(Spec[Apply]):
    """RMSNorm with the weight `name`.weight (Zhang and Sennrich 2019); `offset` is added to the weight."""

    width: int
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LayerNormSpec(Spec[Apply]):
    """LayerNorm with the weight `name`.weight and the bias `name`.bias, both in fp32."""

    width: int
    eps: float


@dataclass(frozen=True, kw_only=True)
class TensorSpec(Spec[Lend]):
    """The tensor `name`, for a model whose arithmetic no other spec names."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class GroupedLinearSpec(Spec[Project]):
    """A block-diagonal projection: `groups` equal parts of x, each by its own rows of `weight`, side by side."""

    weight: Part
    groups: int
    inputs: int
    """Of all groups together."""


@dataclass(frozen=True, kw_only=True)
class LongRotarySpec:
    """Other frequencies for every position of an engine whose context is longer than `beyond` (Ding et al. 2024)."""

    beyond: int
    inverse_frequencies: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RotarySpec(Spec[Rotate]):
    """Rotary position embedding (Su et al. 2021). Its frequencies [dim / 2] say it all but the layout."""

    dim: int
    inverse_frequencies: tuple[float, ...]
    amplitude: float = 1.0
    layout: Literal["half", "interleaved"]
    long: LongRotarySpec | None = None
    inverse: bool = False
    """Turns back what the same embedding without it has turned."""

    def frequencies(self, context: int) -> tuple[float, ...]:
        """The inverse frequencies in an engine whose requests have up to `context` tokens: what an answer uses."""
        return self.long.inverse_frequencies if self.long and context > self.long.beyond else self.inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class SelectionSpec:
    """An attention that sees only what the selection of layer `source` holds; of compressed entries, if it has some."""

    source: int
    top_k: int


@dataclass(frozen=True, kw_only=True)
class CompressedSpec:
    """Besides its own entries an attention sees those of the compressor `source`, one per `ratio` tokens: a row at
    position p those below (p + 1) // ratio. One softmax goes over both."""

    source: str
    ratio: int


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(Spec[Attend]):
    """Causal attention over the request's cache entries, this forward's rows included."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    form: Literal["mha", "mla"] = "mha"
    window: int | None = None
    """Sees at most so many positions, its own included."""
    sinks: str | None = None
    """Checkpoint name of one logit per head that joins the softmax's denominator only."""
    softcap: float | None = None
    """Scores become softcap * tanh(scores / softcap)."""
    selection: SelectionSpec | None = None
    compressed: CompressedSpec | None = None

    @property
    def entry_width(self) -> int:
        """Elements of one cache entry."""
        return self.key_dim if self.form == "mla" else self.kv_heads * (self.key_dim + self.value_dim)

    @property
    def pool_name(self) -> str:
        """The pool of its entries, derived by core."""
        return f"{self.name}.kv"


@dataclass(frozen=True, kw_only=True)
class RotaryAttentionSpec(Spec[AttendFused]):
    """Coarse: splits qkv, normalises q and k where asked, rotates them, attends."""

    attention: AttentionSpec
    rotary: RotarySpec
    q_norm: NormSpec | None = None
    k_norm: NormSpec | None = None


@dataclass(frozen=True, kw_only=True)
class LatentAttentionSpec(Spec[AttendLatent]):
    """Coarse: multi-head latent attention (DeepSeek-V2). The latent is normed and its tail rotated, as is the tail of
    every query; the entry is both. Keys and values of a head are products of the latent with its rows of `expand`."""

    attention: AttentionSpec
    """Of form mla: over latent entries, as if the queries had been taken through `expand` already."""
    rotary: RotarySpec
    norm: NormSpec
    expand: Part
    """[heads * (plain_dim + head_value_dim), latent]: each head's key rows, then its value rows."""
    plain_dim: int
    """Leading elements of a query that are not rotated."""
    head_value_dim: int


@dataclass(frozen=True, kw_only=True)
class NormLinearSpec(Spec[Project]):
    """Coarse: a norm and the projections of its result."""

    norm: NormSpec
    linear: LinearSpec


@dataclass(frozen=True, kw_only=True)
class GatedMLPSpec(Spec[Project]):
    """Coarse: down(act(gate) * up) of the normed input. `gate_up` gives gate, then up."""

    norm: NormSpec | None
    gate_up: LinearSpec
    down: LinearSpec
    activation: Literal["silu", "gelu_tanh"]
    limit: float | None = None
    """gate is at most this before the activation, up lies within it on both sides."""


@dataclass(frozen=True, kw_only=True)
class MoESpec(Spec[Project]):
    """Coarse: a mixture of gated MLPs of the normed input (Shazeer et al. 2017).

    The router's scores, in fp32 over all experts, weight the `top_k` best: down(act(gate) * up) each. `gate`, `up` and
    `down` have one part per expert, in the order of the router's outputs.
    """

    norm: NormSpec | None
    router: LinearSpec
    top_k: int
    renormalise: bool
    """Whether the chosen experts' weights are made to add up to one."""
    gate: tuple[Part, ...]
    up: tuple[Part, ...]
    down: tuple[Part, ...]
    inputs: int
    activation: Literal["silu", "gelu_tanh"]
    score: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax"
    """From the router's outputs to scores."""
    correction: str | None = None
    """Checkpoint name of one number per expert that is added to its score for the choice, not for the weight."""
    groups: int = 1
    top_groups: int = 1
    """Experts are chosen from so many of `groups` equal groups: those whose two best experts add up to most."""
    scale: float = 1.0
    """Of the weights, after `renormalise`."""
    shared: GatedMLPSpec | None = None
    """An MLP of the normed input that every row takes besides; it has no norm of its own."""
    limit: float | None = None
    """See `GatedMLPSpec`, for every expert."""

    @property
    def experts(self) -> int:
        return len(self.down)

    @property
    def inner(self) -> int:
        """Width of one expert."""
        return self.gate[0].rows


@dataclass(frozen=True, kw_only=True)
class HashMoESpec(Spec[Mix]):
    """Coarse: a mixture whose experts follow from the token alone; the router still weights them."""

    moe: MoESpec
    table: str
    """Checkpoint name of the experts of each token: [vocabulary, top_k] whole numbers."""
    vocabulary: int


@dataclass(frozen=True, kw_only=True)
class RowSpec(Spec[Narrow]):
    """The rows that reach the vocabulary projection."""

    width: int


@dataclass(frozen=True, kw_only=True)
class TapSpec(Spec[Take]):
    """Shows the hidden state at one point. Every plugin may take; without takers nothing is called."""

    point: Literal["embed", "layer", "last", "normed"]
    width: int


@dataclass(frozen=True, kw_only=True)
class PoolSpec(Spec[None]):
    """Memory per request that the KV role owns. Answered by a `Pool`, found by `name` within its role.

    A per-token pool keeps one entry per `stride` tokens: the row at position p with (p + 1) % stride == 0
    writes entry p // stride. A per-request pool keeps the value written by each of the newest `versions`
    rows: a request's state after each of them, so that rejected rows can be forgotten.
    """

    width: int
    dtype: torch.dtype
    stride: int = 1
    window: int | None = None
    """Only the newest `window` entries before a forward's first row must stay readable; None keeps all."""
    per: Literal["token", "request"] = "token"
    versions: int = 1
    codec: Codec | None = None


def flat(specs: Sequence[Spec[Any]]) -> Iterator[Spec[Any]]:
    """Every spec and its parts."""
    for spec in specs:
        yield spec
        yield from spec.parts()


def of_kind(specs: Sequence[Spec[Any]], kind: type[S]) -> list[S]:
    """Every spec of class `kind`, nested ones too."""
    return [spec for spec in flat(specs) if isinstance(spec, kind)]
