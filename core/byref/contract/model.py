"""What a model is to the engine: a callable built from specs. Knows no architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from byref.contract.calls import Take
from byref.contract.specs import Spec, TapSpec

if TYPE_CHECKING:
    from torch import Tensor

    from byref.contract.context import ForwardContext

C = TypeVar("C")


class Ask(Protocol):
    """How a layer asks for its callables while a model is built."""

    @property
    def role(self) -> str:
        """The role the model is built for; goes into every spec."""
        ...

    def __call__(self, owner: object, attribute: str, spec: Spec[C]) -> C:
        """Ask for `spec`. What is returned now only raises; the answer is written to `owner.attribute` at bind."""
        ...

    def tap(self, spec: TapSpec, install: Callable[[Take], None]) -> None:
        """Offer a tap. `install` is called at bind with one callable if anybody takes, else never."""
        ...


class Model(Protocol):
    """One role's model."""

    input_width: int
    """Width of the hidden state it takes as input; 0 takes none."""
    vocabulary: int
    """Rows of its vocabulary projection."""
    optional: tuple[str, ...]
    """Patterns of checkpoint tensors that it may leave unread (e.g. MTP layers, stored rotary frequencies)."""
    renames: tuple[tuple[str, str], ...]
    """Regular expressions and what takes their place, applied in order to every name in the checkpoint: where several
    namings of one architecture are in use, the model knows one."""

    def __call__(self, ids: Tensor, positions: Tensor, hidden: Tensor | None, ctx: ForwardContext) -> Tensor:
        """ids and positions [rows] int64, hidden [rows, input_width] -> logits [logit rows, vocabulary]."""
        ...


class Architecture(Protocol):
    """The class that a plugin registers for an architecture's name."""

    def __call__(self, config: Any, ask: Ask) -> Model:
        """Build from a transformers configuration; asks for every callable, allocates nothing."""
        ...
