"""What every KV on slots shares: its pools, their tables, commit. Knows spaces; must not know how one is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.errors import PluginError
from byref.contract.requests import Request
from byref.contract.roles import KV, TARGET, Sizing
from byref.contract.specs import PoolSpec
from byref.contract.state import State
from byref.kv.pools import Bounds, Geometry, SlotPool, Space


class SlotKV(State, KV):
    """A KV whose pools are `SlotPool`s: pools of equal geometry share one space, whatever their role.

    Args:
        sizing: names the pools.
        make_space: the space of one geometry.
    """

    def __init__(self, sizing: Sizing, make_space: Callable[[Geometry], Space]) -> None:
        self._sizing = sizing
        self._bounds = {role.name: Bounds(sizing) for role in sizing.roles}
        geometries = dict.fromkeys(Geometry.of(_checked(spec, sizing), sizing) for spec in sizing.pools)
        spaces = {geometry: make_space(geometry) for geometry in geometries}
        self._pools = {
            (spec.role, spec.name): SlotPool(spec, spaces[Geometry.of(spec, sizing)], self._bounds[spec.role], sizing)
            for spec in sizing.pools
        }
        self._strided = {key: pool for key, pool in self._pools.items() if pool.spec.stride > 1}

    def buffers(self) -> Mapping[str, Tensor]:
        """Every pool, and what the pools read to find their slots."""
        found = {f"{role}/{name}": pool.data for (role, name), pool in self._pools.items()}
        for role, bounds in self._bounds.items():
            found |= dict(zip((f"{role}/before", f"{role}/after"), bounds.lend(), strict=True))
        return found

    def refill(self, ctx: ForwardContext) -> None:
        """Device, from `prepare_forward`: the readable entries of every request in the forward."""
        self._bounds[ctx.states.role].refill(ctx)

    def pool(self, role: str, name: str) -> SlotPool:
        try:
            return self._pools[role, name]
        except KeyError:
            have = ", ".join(sorted(n for r, n in self._pools if r == role)) or "none"
            raise PluginError(f"no pool {name!r} in role {role}", where=f"pools there: {have}") from None

    def commit(self, request: Request, path: Sequence[int]) -> None:
        start = request.computed
        in_place = len(path) == 0 or path[-1] == len(path) - 1
        # Rows that stay in place need nothing but their entries in strided pools, which siblings may have written: the
        # target's. Another role's own windows have written its entries since, and left other rows in its stage.
        for (role, _), pool in (self._strided if in_place else self._pools).items():
            if role == TARGET or (not in_place and request.lengths.get(role, 0) > start):
                pool.keep(request.row, start, path)


def _checked(spec: PoolSpec, sizing: Sizing) -> PoolSpec:
    if spec.per == "request" and spec.versions <= sizing.max_drafts:
        raise PluginError(
            f"the per-request pool {spec.name!r} keeps {spec.versions} versions, and windows have up to "
            f"{sizing.max_drafts} drafts",
            where=f"role {spec.role}",
            hint=f"give it versions={sizing.max_drafts + 1}, or draft less",
        )
    return spec
