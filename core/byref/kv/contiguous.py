"""The default KV: one extent per request, sized prompt + max_tokens. Plain: other KVs are tested against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.errors import PluginError
from byref.contract.requests import Request
from byref.contract.roles import KV, TARGET, Sizing
from byref.contract.state import Key, State
from byref.contract.step import Grant
from byref.kv.pools import Bounds, ContiguousPool, Geometry, Space


class ContiguousKV(State, KV):
    """Everything the KV contract asks for, with no sharing and no paging."""

    key: ClassVar[Key[ContiguousKV]]

    def __init__(self, sizing: Sizing) -> None:
        self._sizing = sizing
        self._bounds = {role.name: Bounds(sizing) for role in sizing.roles}
        self._spaces: dict[Geometry, Space] = {}
        self._pools: dict[tuple[str, str], ContiguousPool] = {}
        for spec in sizing.pools:
            if spec.per == "request" and spec.versions <= sizing.max_drafts:
                raise PluginError(
                    f"the per-request pool {spec.name!r} keeps {spec.versions} versions, and windows have up to "
                    f"{sizing.max_drafts} drafts",
                    where=f"role {spec.role}",
                    hint=f"give it versions={sizing.max_drafts + 1}, or draft less",
                )
            geometry = Geometry.of(spec, sizing)
            space = self._spaces.setdefault(geometry, Space(geometry, sizing))
            self._pools[spec.role, spec.name] = ContiguousPool(spec, space, self._bounds[spec.role], sizing)
        self._room: dict[str, int] = {}

    def buffers(self) -> Mapping[str, Tensor]:
        """Every pool and table."""
        found = {f"{role}/{name}": pool.data for (role, name), pool in self._pools.items()}
        for i, space in enumerate(self._spaces.values()):
            found |= {f"space{i}/bases": space.bases(), f"space{i}/stages": space.stages()}
        for role, bounds in self._bounds.items():
            found |= dict(zip((f"{role}/before", f"{role}/after"), bounds.lend(), strict=True))
        return found

    def refill(self, ctx: ForwardContext) -> None:
        """Device: the readable entries of every request in the forward."""
        self._bounds[ctx.states.role].refill(ctx)

    def pool(self, role: str, name: str) -> ContiguousPool:
        try:
            return self._pools[role, name]
        except KeyError:
            have = ", ".join(sorted(n for r, n in self._pools if r == role)) or "none"
            raise PluginError(f"no pool {name!r} in role {role}", where=f"pools there: {have}") from None

    def refusal(self, request: Request) -> str | None:
        need, room = self._need(request), self._sizing.kv_tokens
        return f"it needs room for {need} tokens and the KV cache holds {room}" if need > room else None

    def match(self, request: Request) -> int:
        return 0

    def reserve(self, request: Request, n: int) -> Grant | None:
        if request.id not in self._room and not self._take(request):
            return None
        upto = request.computed + n
        return Grant(request.id, upto) if upto <= self._room[request.id] else None

    def commit(self, request: Request, path: Sequence[int]) -> None:
        start = request.computed
        for (role, _), pool in self._pools.items():
            if role == TARGET or request.lengths.get(role, 0) > start:
                pool.keep(request.row, start, path)

    def fork(self, parent: Request, child: Request) -> None:
        if not self._take(child):
            raise MemoryError(f"no room to fork request {parent.id}")
        for pool in self._pools.values():
            pool.copy(parent.row, child.row)

    def release(self, request: Request) -> None:
        if self._room.pop(request.id, None) is not None:
            for space in self._spaces.values():
                space.give(request.row)

    def usage(self) -> Mapping[str, int]:
        return {"used_tokens": sum(self._room.values()), "capacity_tokens": self._sizing.kv_tokens}

    def _need(self, request: Request) -> int:
        return min(request.limit, self._sizing.max_context) + self._sizing.max_drafts

    def _take(self, request: Request) -> bool:
        need = self._need(request)
        taken: list[Space] = []
        for space in self._spaces.values():
            if not space.take(request.row, need):
                for other in taken:
                    other.give(request.row)
                return False
            taken.append(space)
        self._room[request.id] = need
        return True


ContiguousKV.key = Key("contiguous_kv", ContiguousKV)
