# mypy: disable-error-code="import-not-found,import-untyped"
"""Attention by the Triton kernels: which shapes they are launched with. Knows the batch and the page table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import triton
from torch import Tensor

from byref.contract.context import ForwardContext
from byref.contract.roles import BATCH
from byref.contract.specs import AttentionSpec
from byref.kv import SlotPool
from byref_paged_kv.kernels import attend_kernel, merge_kernel, write_kernel
from byref_paged_kv.space import PagedSpace

BLOCK_ROWS = 64
"""Query rows times grouped heads of one program, at prefill."""
BLOCK_KEYS = 64
"""Keys of one turn of the loop; half as many for wide heads."""
SPLIT_KEYS = 512
"""Keys of one part, at least."""
MOST_SPLITS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """How one forward is cut into programs."""

    block_q: int
    block_m: int
    row_blocks: int
    splits: int

    @classmethod
    def of(cls, ctx: ForwardContext, grouped: int) -> Shape:
        """Follows from the context's key alone, so that a captured graph stays right."""
        widest = ctx.rows_per_request or ctx.rows
        block_q = max(min(BLOCK_ROWS // grouped, triton.next_power_of_2(widest)), 1)
        block_m = max(triton.next_power_of_2(block_q * grouped), 16)
        splits = min(triton.cdiv(ctx.context_bound, SPLIT_KEYS), MOST_SPLITS) if widest <= 8 else 1
        return cls(block_q, block_m, triton.cdiv(widest, block_q), triton.next_power_of_2(splits))


class TritonAttention:
    """Writes the rows' entries into their pages and attends over pages, without gathering them."""

    capturable = True
    about: ClassVar[str] = "triton: kernels that read pages"

    def __init__(self, spec: AttentionSpec, pool: SlotPool, space: PagedSpace, sinks: Tensor | None) -> None:
        self._spec, self._pool, self._space, self._sinks = spec, pool, space, sinks
        self._kv_heads = 1 if spec.form == "mla" else spec.kv_heads
        self._values_at = 0 if spec.form == "mla" else spec.kv_heads * spec.key_dim

    def __call__(self, q: Tensor, kv: Tensor, ctx: ForwardContext) -> Tensor:
        self._write(kv, ctx)
        spec, batch = self._spec, ctx.state(BATCH)
        data, table = self._pool.data, self._space.table()
        shape = Shape.of(ctx, spec.heads // self._kv_heads)
        sums = q.new_empty(shape.splits, ctx.rows, spec.heads, spec.value_dim, dtype=torch.float32)
        peaks = q.new_empty(shape.splits, ctx.rows, spec.heads, dtype=torch.float32)
        totals = torch.empty_like(peaks)
        out = q.new_empty(ctx.rows, spec.heads * spec.value_dim)
        attend_kernel[(ctx.requests * shape.row_blocks, self._kv_heads, shape.splits)](
            q.contiguous(),
            data,
            table,
            batch.request_rows(ctx),
            batch.starts(ctx),
            batch.offsets(ctx),
            batch.lengths(ctx),
            batch.frontier(ctx),
            batch.ancestors(ctx),
            batch.positions(ctx),
            sums,
            peaks,
            totals,
            spec.scale,
            spec.softcap or 1.0,
            data.shape[1],
            table.shape[1],
            self._space.per_page,
            shape.row_blocks,
            0,
            self._values_at,
            ctx.rows,
            HEADS=spec.heads,
            GROUP=spec.heads // self._kv_heads,
            KEY_DIM=spec.key_dim,
            VALUE_DIM=spec.value_dim,
            WINDOW=spec.window or 0,
            CAPPED=spec.softcap is not None,
            SPLITS=shape.splits,
            BLOCK_Q=shape.block_q,
            BLOCK_M=shape.block_m,
            BLOCK_N=BLOCK_KEYS // 2 if spec.key_dim > 128 else BLOCK_KEYS,
            BLOCK_D=max(triton.next_power_of_2(spec.key_dim), 16),
            BLOCK_V=max(triton.next_power_of_2(spec.value_dim), 16),
        )
        merge_kernel[(ctx.rows, spec.heads)](
            sums,
            peaks,
            totals,
            self._sinks if self._sinks is not None else peaks,
            out,
            ctx.rows,
            HEADS=spec.heads,
            VALUE_DIM=spec.value_dim,
            SPLITS=shape.splits,
            HAS_SINKS=self._sinks is not None,
            BLOCK_V=triton.next_power_of_2(spec.value_dim),
        )
        return out

    def _write(self, kv: Tensor, ctx: ForwardContext) -> None:
        batch, data, table = ctx.state(BATCH), self._pool.data, self._space.table()
        width = data.shape[1]
        block = min(triton.next_power_of_2(width), 1024)
        write_kernel[(ctx.rows, triton.cdiv(width, block))](
            kv.contiguous(),
            data,
            table,
            batch.rows(ctx),
            batch.index(ctx),
            width,
            table.shape[1],
            self._space.per_page,
            BLOCK=block,
        )
