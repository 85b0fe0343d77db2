"""Projections, packed once for the CPU. Knows weights and oneDNN; must not know what is projected."""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.nn import functional

from byref.contract.calls import Project
from byref.contract.errors import ModelError
from byref.contract.roles import Site
from byref.contract.specs import GroupedLinearSpec, LinearSpec

PACK_ROWS = 16
"""Batch size the packed layout is chosen for; the layout serves every other size too."""
BLOCK = 512
"""Inputs of one packed product in fp32."""
KERNELS = 256
"""Kernels of packed products in fp32 that are kept, see `_keep_few_kernels`."""


class PlainLinear:
    """`torch.nn.functional.linear` on the weight as it was loaded."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = functional.linear(x, self.weight, self.bias)
        return y if residual is None else y.add_(residual)


class PackedLinear:
    """The weight reordered for oneDNN, which reads it at about 1.6 times the speed of the plain layout.

    The residual is added before the result is rounded to the weight's dtype.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if weight.dtype is torch.float32:
            _keep_few_kernels()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS)
        self.bias = bias
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is None:
            return self._plain(x, self.packed, self.bias, "none", [], "")  # type: ignore[no-any-return]
        return self._add(x, residual, self.packed, self.bias, "add")  # type: ignore[no-any-return]


class BlockedLinear:
    """Packed products of at most `BLOCK` inputs, added up.

    oneDNN sums a row's products one after the other, which over many inputs loses twice the digits that a plain
    fp32 product loses: log-probabilities would leave the 1e-4 that engines are compared within.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._count = -(-weight.shape[1] // BLOCK)
        blocks = [block.contiguous() for block in weight.tensor_split(self._count, 1)]
        self.blocks = [PackedLinear(block, None if i else bias) for i, block in enumerate(blocks)]

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        for block, part in zip(self.blocks, x.tensor_split(self._count, -1), strict=True):
            residual = block(part, residual)
        assert residual is not None
        return residual


def _keep_few_kernels() -> None:
    """Bound what oneDNN and torch remember of fp32 products, unless the environment says how much.

    Either keeps the kernels of the last 1024 shapes, every number of rows is a shape, and a kernel takes half a MiB: a
    server's memory would grow by 500 MiB over its first hours. Making one anew takes half a millisecond. In bf16 they
    take next to nothing. Both are read once in a process, before the first product.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(KERNELS))


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether weights of this kind are packed here."""
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and dtype in (torch.float32, torch.bfloat16)
        and (dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def answer_linear(spec: LinearSpec, site: Site) -> Project:
    """Load the fused weight and its bias, packed where the device gains from it."""
    weight = site.parameters.load([part.name for part in spec.fused], (spec.outputs, spec.inputs))
    _check_twin(spec, weight, site)
    bias = None
    if spec.bias:
        names = [part.name.removesuffix("weight") + "bias" for part in spec.fused]
        bias = site.parameters.load(names, (spec.outputs,))
    return linear_of(weight, bias)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> Project:
    """The projection by a weight [outputs, inputs], packed where its device gains from it."""
    if not packs(weight.device, weight.dtype):
        return PlainLinear(weight, bias)
    blocked = weight.dtype is torch.float32 and weight.shape[1] > BLOCK
    return (BlockedLinear if blocked else PackedLinear)(weight, bias)


def _check_twin(spec: LinearSpec, weight: Tensor, site: Site) -> None:
    """Refuse a checkpoint whose second copy of the weight says something else."""
    if spec.twin is None or not site.parameters.has(spec.twin):
        return
    if not torch.equal(site.parameters.load([spec.twin], weight.shape), weight):
        names = ", ".join(part.name for part in spec.fused)
        raise ModelError(
            f"the tensor {spec.twin!r} differs from {names}, and the configuration ties them",
            where=f"{spec.name} of role {spec.role}",
            hint="set tie_word_embeddings to false in config.json, or remove the tensor",
        )


def answer_grouped_linear(spec: GroupedLinearSpec, site: Site) -> Project:
    """One batched product over the groups."""
    groups, rows = spec.groups, spec.weight.rows
    weight = site.parameters.load([spec.weight.name], (rows, spec.inputs // groups))
    by_group = weight.unflatten(0, (groups, -1)).transpose(1, 2)

    def project(x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = torch.bmm(x.view(-1, groups, spec.inputs // groups).transpose(0, 1), by_group)
        y = y.transpose(0, 1).reshape(-1, rows)
        return y if residual is None else y.add_(residual)

    return project
