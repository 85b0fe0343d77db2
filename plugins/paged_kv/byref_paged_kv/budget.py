"""How many pages there are, and how large. Knows pools and bytes; nothing of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from byref.contract.errors import ConfigError
from byref.contract.roles import Sizing
from byref.contract.specs import PoolSpec
from byref.engine.device import available_bytes
from byref.kv import Geometry
from byref_paged_kv import Options

WHERE = "[plugins.paged_kv]"


def page_tokens(pools: Sequence[PoolSpec], page_size: int) -> int:
    """Tokens of a page: the page size, rounded up so that a page of every stride ends where an entry does."""
    unit = math.lcm(*(spec.stride for spec in pools if spec.per == "token"))
    return -(-page_size // unit) * unit


def count_pages(options: Options, sizing: Sizing) -> int:
    """Pages of every space, the null page not counted.

    Raises:
        ConfigError: there would be none.
    """
    tokens = page_tokens(sizing.pools, options.page_size)
    if options.num_pages:
        return options.num_pages
    if options.kv_memory is None:
        return max(-(-sizing.kv_tokens // tokens), 1)
    budget = _bytes(options.kv_memory, sizing)
    page, fixed = page_bytes(sizing, tokens), fixed_bytes(sizing, options.checkpoints * options.prefix_cache)
    count = (budget - fixed) // page - 1 if page else -(-sizing.kv_tokens // tokens)
    if count < 1:
        raise ConfigError(
            f"{budget} bytes hold no page: one takes {page}, the null page as many, and {fixed} go beside them",
            where=f"{WHERE} kv_memory",
            hint=f"give at least {fixed + 2 * page} bytes",
        )
    return count


def page_bytes(sizing: Sizing, tokens: int) -> int:
    """Bytes of one page of every per-token pool together."""
    return sum(entry_bytes(spec) * (tokens // spec.stride) for spec in sizing.pools if spec.per == "token")


def fixed_bytes(sizing: Sizing, checkpoints: int = 0) -> int:
    """Bytes that do not grow with pages: states and stages of every request row, and checkpoints of states."""
    total = 0
    for spec in sizing.pools:
        geometry = Geometry.of(spec, sizing)
        slots = (sizing.max_requests + 1) * (geometry.versions if geometry.per_request else geometry.stage)
        total += entry_bytes(spec) * (slots + checkpoints * geometry.per_request)
    return total


def entry_bytes(spec: PoolSpec) -> int:
    """Bytes of one entry as stored."""
    if spec.codec is None:
        return spec.width * spec.dtype.itemsize
    return spec.codec.width(spec.width) * spec.codec.dtype.itemsize


def _bytes(memory: float, sizing: Sizing) -> int:
    """A whole number is bytes, a fraction is of what is free now."""
    return int(memory * available_bytes(sizing.device)) if memory <= 1 else int(memory)
