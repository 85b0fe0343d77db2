"""Which pools the sparse layers of a model need, and whether its layers fit together. Knows specs; holds no tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from byref.contract.errors import ConfigError, PluginError
from byref.contract.sparse import CompressSpec, IndexSpec
from byref.contract.specs import AttentionSpec, PoolSpec, Spec, of_kind
from byref.contract.step import Step
from byref_dsa.codecs import Fp8Keys


def keys_pool(spec: IndexSpec) -> str:
    """The pool of an indexer's own keys."""
    return f"{spec.name}.keys"


def raw_pool(spec: CompressSpec) -> str:
    """The pool of rows whose window may still be open: each row's kv, then its gate."""
    return f"{spec.name}.raw"


@dataclass(frozen=True, slots=True)
class Layout:
    """What was asked for, over all roles."""

    indexers: tuple[IndexSpec, ...]
    compressors: tuple[CompressSpec, ...]
    pools: tuple[PoolSpec, ...]

    @classmethod
    def of(cls, specs: Sequence[Spec[Any]], index_keys: Literal["auto", "fp8"]) -> Layout:
        """What `specs` need.

        Raises:
            PluginError: a layer shares a selection that no layer before it makes, or attends to one of another size.
            ConfigError: index keys cannot be rotated.
        """
        dtypes = {pool.role: pool.dtype for pool in of_kind(specs, PoolSpec)}
        indexers, compressors = of_kind(specs, IndexSpec), of_kind(specs, CompressSpec)
        for attention in of_kind(specs, AttentionSpec):
            _check_source(attention, indexers)
        for odd in (spec.dim for spec in indexers if index_keys == "fp8" and spec.dim & (spec.dim - 1)):
            raise ConfigError(
                f"index keys of {odd} elements cannot be rotated, and fp8 keys are: a power of two is needed",
                where="[plugins.dsa] index_keys",
                hint='"auto"',
            )
        pools = [*_key_pools(indexers, dtypes, index_keys), *_compressed_pools(compressors, dtypes)]
        return cls(tuple(indexers), tuple(compressors), tuple(pools))

    @property
    def widths(self) -> dict[str, int]:
        """Per role the most entries that a row selects."""
        found: dict[str, int] = {}
        for spec in self.indexers:
            found[spec.role] = max(found.get(spec.role, 0), spec.top_k)
        return found

    def compressor(self, role: str, name: str) -> CompressSpec:
        """The compressor called `name`."""
        for spec in self.compressors:
            if (spec.role, spec.name) == (role, name):
                return spec
        have = ", ".join(spec.name for spec in self.compressors if spec.role == role) or "none"
        raise PluginError(f"there is no compressor {name!r}", where=f"role {role}; compressors there: {have}")

    def check(self, step: Step) -> None:
        """Refuse trees of drafts where entries are compressed: siblings would close the same window.

        Raises:
            PluginError: a window is a tree.
        """
        if self.compressors and any(window.is_tree for window in step.plan.windows):
            raise PluginError(
                "a tree of drafts reached a model with compressed entries, which are computed along one chain only",
                where=f"compressor {self.compressors[0].name}",
                hint="let the drafter make chains",
            )


def _check_source(spec: AttentionSpec, indexers: Sequence[IndexSpec]) -> None:
    if spec.selection is None:
        return
    where = f"role {spec.role}, layer {spec.layer}"
    own = [one for one in indexers if one.role == spec.role and one.layer == spec.selection.source and not one.shared]
    if not own or spec.selection.source > spec.layer:
        raise PluginError(
            f"{spec.name!r} uses the selection of layer {spec.selection.source}, and no indexer makes one there",
            where=where,
            hint="a configuration whose first sparse layer has an indexer of its own",
        )
    if own[0].top_k != spec.selection.top_k:
        what = f"{spec.name!r} sees {spec.selection.top_k} entries, and its indexer selects {own[0].top_k}"
        raise PluginError(what, where=where)


def _key_pools(
    indexers: Iterable[IndexSpec], dtypes: dict[str, torch.dtype], index_keys: Literal["auto", "fp8"]
) -> list[PoolSpec]:
    """Of one geometry with the attention's own pools: they share pages."""
    return [
        PoolSpec(
            role=spec.role,
            layer=spec.layer,
            name=keys_pool(spec),
            width=spec.dim,
            dtype=dtypes[spec.role],
            codec=Fp8Keys(dtypes[spec.role]) if index_keys == "fp8" else None,
        )
        for spec in indexers
        if not spec.shared and spec.keys is None
    ]


def _compressed_pools(compressors: Iterable[CompressSpec], dtypes: dict[str, torch.dtype]) -> list[PoolSpec]:
    """Closed entries for good; rows as long as a window that they belong to may be closed by a coming row."""
    pools = []
    for spec in compressors:
        place: dict[str, Any] = {"role": spec.role, "layer": spec.layer, "dtype": dtypes[spec.role]}
        pools.append(PoolSpec(name=spec.pool_name, width=spec.width, stride=spec.ratio, **place))
        reach = 2 * spec.ratio if spec.overlap else spec.ratio
        pools.append(PoolSpec(name=raw_pool(spec), width=2 * spec.raw_width, window=reach, **place))
    return pools
