"""The default KV: one extent per request, sized prompt + max_tokens. Plain: other KVs are tested against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from byref.contract.errors import RequestError
from byref.contract.requests import Request
from byref.contract.roles import Sizing
from byref.contract.state import Key
from byref.contract.step import Grant
from byref.kv.base import SlotKV
from byref.kv.extents import ExtentSpace
from byref.kv.pools import Geometry


class ContiguousKV(SlotKV):
    """Everything the KV contract asks for, with no sharing and no paging."""

    key: ClassVar[Key[ContiguousKV]]

    def __init__(self, sizing: Sizing) -> None:
        self._spaces: list[ExtentSpace] = []
        super().__init__(sizing, self._make_space)
        self._room: dict[str, int] = {}

    def _make_space(self, geometry: Geometry) -> ExtentSpace:
        self._spaces.append(ExtentSpace(geometry, self._sizing))
        return self._spaces[-1]

    def buffers(self) -> Mapping[str, Tensor]:
        tables = {f"space{i}/bases": space.bases() for i, space in enumerate(self._spaces)}
        stages = {f"space{i}/stages": space.stages() for i, space in enumerate(self._spaces)}
        return {**super().buffers(), **tables, **stages}

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

    def fork(self, parent: Request, child: Request) -> None:
        if not self._take(child):
            raise RequestError(f"there is no room to fork request {parent.id}", hint="ask for fewer choices")
        for pool in self._pools.values():
            pool.move(pool.placement.copies(parent.row, child.row))

    def release(self, request: Request) -> None:
        if self._room.pop(request.id, None) is not None:
            for space in self._spaces:
                space.give(request.row)

    def usage(self) -> Mapping[str, int]:
        return {"used_tokens": sum(self._room.values()), "capacity_tokens": self._sizing.kv_tokens}

    def _need(self, request: Request) -> int:
        return min(request.limit, self._sizing.max_context) + self._sizing.max_drafts

    def _take(self, request: Request) -> bool:
        need = self._need(request)
        taken: list[ExtentSpace] = []
        for space in self._spaces:
            if not space.take(request.row, need):
                for other in taken:
                    other.give(request.row)
                return False
            taken.append(space)
        self._room[request.id] = need
        return True


ContiguousKV.key = Key("contiguous_kv", ContiguousKV)
