"""The tape: records the operations of one forward on the CPU and runs them again after buffers are refilled.

It checks, without a GPU, what a CUDA graph would demand: no host read, no host value baked in, no buffer
that moves, nothing built lazily. Knows torch operations; nothing of models.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.weak import TensorWeakRef

from byref.capture.base import Body, clear_memos, refuse_uncapturable
from byref.capture.guard import PointerGuard
from byref.contract.context import ForwardContext, Kind, StateMap
from byref.contract.errors import CaptureError
from byref.plugins.binder import Bound

if TYPE_CHECKING:
    from byref.engine.batch import RowBatch


@dataclass(frozen=True, slots=True)
class _Made:
    """Stands for a tensor that an operation of the tape makes."""

    number: int


@dataclass(frozen=True, slots=True)
class _Outside:
    """Stands for a tensor that was there before."""

    number: int


@dataclass(frozen=True, slots=True)
class _Op:
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any
    """As the operation returns it, with stand-ins in place of tensors."""


class Tape:
    """A `Capture` of every kind of forward."""

    def __init__(self, maps: Sequence[StateMap], batches: Sequence[RowBatch], bound: Sequence[Bound]) -> None:
        self._maps, self._batches, self._bound = maps, batches, bound
        self._recordings: dict[tuple[int | Kind, ...], Recording] = {}
        self._guard: PointerGuard | None = None

    def begin(self) -> None:
        refuse_uncapturable(self._bound, frozenset(Kind))
        self._guard = PointerGuard(self._maps)

    def wants(self, ctx: ForwardContext) -> bool:
        return self._guard is not None and ctx.key not in self._recordings

    def record(self, ctx: ForwardContext, body: Body) -> None:
        for batch in self._batches:
            batch.record(True)
        try:
            recording = Recording(body, lambda: clear_memos(ctx))
        finally:
            for batch in self._batches:
                batch.record(False)
        self._recordings[ctx.key] = recording

    def run(self, ctx: ForwardContext, body: Body) -> Tensor:
        if self._guard is None:
            return body()
        self._guard.check()
        return self._recordings[ctx.key].replay()

    @property
    def keys(self) -> frozenset[tuple[int | Kind, ...]]:
        """Keys that were recorded."""
        return frozenset(self._recordings)


class Recording:
    """The operations of one body, run once while they are written down.

    Raises:
        CaptureError: the body reads a value on the host, builds a tensor from host values, has a result
            whose shape depends on values, or makes a tensor that outlives it.
    """

    def __init__(self, body: Body, clear: Callable[[], None]) -> None:
        recorder = _Recorder()
        with _NoHostReads(), recorder:
            result = body()
        self._ops = recorder.ops
        self._result = recorder.encode(result)
        fresh, outside = recorder.fresh, recorder.forget()
        kept = StorageWeakRef(result.untyped_storage())
        del result
        clear()
        gc.collect()
        for name, storage in fresh:
            if storage != kept and not storage.expired():
                raise CaptureError(
                    f"a tensor made inside the forward, by {name}, outlives it",
                    hint="allocate it in create_states: nothing is built lazily, and scratch lives in a Memo",
                )
        found = [reference() for reference in outside]
        if any(tensor is None for tensor in found):
            _raise_host_values()
        self._outside = found

    def replay(self) -> Tensor:
        """Run the operations on the buffers as they are now."""
        made: dict[int, Tensor] = {}
        outside = self._outside

        def find(ref: _Made | _Outside) -> Tensor:
            return made[ref.number] if isinstance(ref, _Made) else outside[ref.number]

        def decode(value: Any) -> Any:
            return tree_map_only((_Made, _Outside), find, value)

        for op in self._ops:
            result = op.function(*decode(op.args), **decode(op.kwargs))
            _store(op.result, result, made)
        logits: Tensor = decode(self._result)
        return logits


def _store(pattern: Any, result: Any, made: dict[int, Tensor]) -> None:
    if isinstance(pattern, _Made):
        made[pattern.number] = result
    elif isinstance(pattern, (tuple, list)):
        for one, value in zip(pattern, result, strict=True):
            _store(one, value, made)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[_Op] = []
        self.fresh: list[tuple[str, StorageWeakRef]] = []
        self._stand_ins: dict[int, _Made | _Outside] = {}
        self._made: list[Tensor] = []
        self._outside: list[Tensor] = []
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        _refuse(func, args)
        if _is_composite(func):  # one operation here, though it may read on the host by another
            with self:
                return func.decompose(*args, **kwargs)
        inputs = self.encode(args), self.encode(kwargs)
        self._storages |= {_storage(t) for t in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            if id(tensor) not in self._stand_ins:
                self._note(tensor, str(func))
        self.ops.append(_Op(func, *inputs, self.encode(result)))
        return result

    def encode(self, value: Any) -> Any:
        """`value` with stand-ins in place of tensors; those not made by this recording are from outside."""
        return tree_map_only(Tensor, self._stand_in, value)

    def forget(self) -> list[TensorWeakRef]:
        """Let go of the tensors that kept their identities while recording; weak references to those from outside."""
        outside = [TensorWeakRef(tensor) for tensor in self._outside]
        self._made.clear()
        self._outside.clear()
        self._stand_ins.clear()
        return outside

    def _stand_in(self, tensor: Tensor) -> _Made | _Outside:
        if id(tensor) not in self._stand_ins:
            self._stand_ins[id(tensor)] = _Outside(len(self._outside))
            self._outside.append(tensor)
        return self._stand_ins[id(tensor)]

    def _note(self, tensor: Tensor, by: str) -> None:
        self._stand_ins[id(tensor)] = _Made(len(self._made))
        self._made.append(tensor)
        if _storage(tensor) not in self._storages:
            self._storages.add(_storage(tensor))
            self.fresh.append((by, StorageWeakRef(tensor.untyped_storage())))


_CASTS = frozenset({"__array__", "__bool__", "__int__", "__float__", "__index__", "__repr__", "__str__", "__format__"})
_HOST_READS = _CASTS | {"tolist", "numpy", "item", "cpu"}


class _NoHostReads(TorchFunctionMode):
    """`tolist` and `numpy` read memory without an operation that a dispatch mode would see."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _HOST_READS and args and isinstance(args[0], Tensor):
            _raise(f"Tensor.{name}")
        return func(*args, **(kwargs or {}))


def _refuse(func: Any, args: tuple[Any, ...]) -> None:
    tags, name = func.tags, func.name()
    if torch.Tag.data_dependent_output in tags or ("index_put" in name and _has_mask(args[1])):
        _raise(str(func))
    # Indexing is dynamic by its tag, but only a mask makes it so.
    if torch.Tag.dynamic_output_shape in tags and (name != "aten::index.Tensor" or _has_mask(args[1])):
        _raise(str(func))
    if name in ("aten::lift_fresh", "aten::lift"):
        _raise_host_values()


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether an index is a mask: its true elements are counted on the host."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _is_composite(func: Any) -> bool:
    """Whether an operation is but a sequence of others; in inference mode it arrives whole."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(func.name(), "CompositeImplicitAutograd") and not has(func.name(), "CPU")


def _raise_host_values() -> None:
    raise CaptureError(
        "a tensor is built from host values inside the forward: a replay would repeat the old values",
        hint="stage it in prepare_step, and refill a persistent buffer",
    )


def _raise(what: str) -> None:
    raise CaptureError(
        f"{what} reads a device value on the host inside a captured forward",
        hint="keep it on the device; what is known on the host belongs in prepare_step",
    )


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, value)
    return found


def _storage(tensor: Tensor) -> int:
    """Identity of what a tensor's values live in; a packed weight has no storage to ask."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
