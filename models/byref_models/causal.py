"""The base of every causal language model. Knows the moments of a forward; must not know who answers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from byref.contract.calls import Take
from byref.contract.specs import EmbedSpec, LinearSpec, NormSpec, Part, RowSpec, TapSpec

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from byref.contract.context import ForwardContext
    from byref.contract.model import Ask


class Block(Protocol):
    """One layer: x [rows, hidden] -> x [rows, hidden]."""

    def __call__(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor: ...


class CausalLM:
    """Embedding, layers, norm, vocabulary projection. A subclass says what a layer is."""

    input_width = 0
    optional: tuple[str, ...] = ("model.rotary_emb.*", "model.layers.*.rotary_emb.inv_freq")
    """Frequencies that older checkpoints carry: the configuration speaks for them."""
    renames: tuple[tuple[str, str], ...] = ()
    norm_offset: ClassVar[float] = 0.0
    """See `NormSpec`, for the last norm."""

    def __init__(self, config: PretrainedConfig, ask: Ask) -> None:
        self.vocabulary: int = config.vocab_size
        width: int = config.hidden_size
        role = ask.role
        scale = self.embedding_scale(config)
        embed = EmbedSpec(role=role, name="model.embed_tokens", rows=config.vocab_size, width=width, scale=scale)
        self.embed = ask(self, "embed", embed)
        self.layers: list[Callable[..., Tensor]] = [self.layer(config, ask, i) for i in self.numbers(config)]
        name = self.norm_name(config)
        norm = NormSpec(role=role, name=name, width=width, eps=config.rms_norm_eps, offset=self.norm_offset)
        self.norm = ask(self, "norm", norm)
        stream = self.stream_width(config)
        self.rows = ask(self, "rows", RowSpec(role=role, name="rows", width=stream))
        tied = config.tie_word_embeddings
        head = LinearSpec(
            role=role,
            name="lm_head",
            fused=(Part("model.embed_tokens.weight" if tied else "lm_head.weight", self.vocabulary),),
            inputs=width,
            narrow=True,
            twin="lm_head.weight" if tied else None,
        )
        self.head = ask(self, "head", head)
        self._offer_taps(ask, stream, width)

    def layer(self, config: PretrainedConfig, ask: Ask, i: int) -> Callable[..., Tensor]:
        """Layer `i`: a `Block`, unless `__call__` knows better."""
        raise NotImplementedError

    def numbers(self, config: PretrainedConfig) -> Sequence[int]:
        """Which layers of the checkpoint it has: all, but for those that a role's overrides leave out."""
        left_out = getattr(config, "left_out", ())
        return [i for i in range(config.num_hidden_layers) if i not in left_out]

    def norm_name(self, config: PretrainedConfig) -> str:
        """Of the last norm."""
        return "model.norm"

    def stream_width(self, config: PretrainedConfig) -> int:
        """Elements of a row between layers."""
        return int(config.hidden_size)

    def embedding_scale(self, config: PretrainedConfig) -> float:
        """See `EmbedSpec`."""
        return 1.0

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        return self.run(self.embed(ids), positions, ctx)

    def run(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """From the input of the first layer to logits."""
        for layer in self.layers:
            x = layer(x, positions, ctx)
        return self.head(self.finish(self.rows(x, ctx)))

    def finish(self, x: Tensor) -> Tensor:
        """From what the last layer leaves to the input of the vocabulary projection."""
        return self.norm(x)

    def _offer_taps(self, ask: Ask, stream: int, width: int) -> None:
        def offer(point: str, layer: int, install: Callable[[Take], None]) -> None:
            of_point = width if point == "normed" else stream
            ask.tap(TapSpec(role=ask.role, name=point, layer=layer, point=point, width=of_point), install)  # type: ignore[arg-type]

        offer("embed", -1, self._tap_embed)
        for i in range(len(self.layers)):
            offer("layer", i, partial(self._tap_layer, i))
        offer("last", -1, self._tap_rows)
        offer("normed", -1, lambda take: self._tap_rows(lambda x, ctx: take(self.finish(x), ctx)))

    def _tap_embed(self, take: Take) -> None:
        first = self.layers[0]

        def tapped(x: Tensor, *more: Any) -> Tensor:
            take(x, more[-1])
            return first(x, *more)

        self.layers[0] = tapped

    def _tap_layer(self, i: int, take: Take) -> None:
        layer = self.layers[i]

        def tapped(x: Tensor, *more: Any) -> Tensor:
            x = layer(x, *more)
            take(x, more[-1])
            return x

        self.layers[i] = tapped

    def _tap_rows(self, take: Take) -> None:
        rows = self.rows

        def tapped(hidden: Tensor, ctx: ForwardContext) -> Tensor:
            take(hidden, ctx)
            return rows(hidden, ctx)

        self.rows = tapped
