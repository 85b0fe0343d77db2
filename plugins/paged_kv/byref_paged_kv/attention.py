"""Which attention reads the pages: chosen once, at bind, from what the device, the pool and the options allow."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch

from byref.answers.attention import PoolAttention
from byref.contract.calls import Attend
from byref.contract.errors import ConfigError
from byref.contract.roles import Site
from byref.contract.specs import AttentionSpec
from byref_paged_kv.kv import PagedKV
from byref_paged_kv.space import PagedSpace

Choice = Literal["auto", "gather", "views", "triton"]
WHERE = "[plugins.paged_kv] attention"


def choose(choice: Choice, spec: AttentionSpec, site: Site) -> Choice:
    """`auto` made definite.

    Raises:
        ConfigError: what was asked for does not work here, and why.
    """
    codec = site.kv.pool(spec.role, spec.pool_name).spec.codec
    obstacles: dict[Choice, str | None] = {
        "triton": _no_triton(site.sizing.device) or ("the pool has a codec" if codec else None),
        "views": _no_views(site) or ("the pool has a codec" if codec else None),
        "gather": None,
    }
    if choice == "auto":
        return next(name for name, obstacle in obstacles.items() if obstacle is None)
    obstacle = obstacles[choice]
    if obstacle:
        what = f"attention = {choice!r} does not work here: {obstacle}"
        raise ConfigError(what, where=WHERE, hint='"auto" takes what works')
    return choice


def answer(choice: Choice, spec: AttentionSpec, site: Site, kv: PagedKV) -> Attend:
    """The attention of one layer."""
    chosen = choose(choice, spec, site)
    sinks = site.parameters.load([spec.sinks], (spec.heads,)) if spec.sinks else None
    pool = kv.pool(spec.role, spec.pool_name)
    space = pool.placement
    assert isinstance(space, PagedSpace)
    if chosen == "triton":
        from byref_paged_kv.triton_attention import TritonAttention

        return TritonAttention(spec, pool, space, sinks)
    if chosen == "views":
        from byref_paged_kv.view_attention import ViewAttention

        return ViewAttention(spec, pool, space, sinks)
    return PoolAttention(spec, pool, site.sizing.captured, sinks)


def _no_triton(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"the device is {device.type}, and it needs CUDA"
    return None if find_spec("triton") else "triton is not installed"


def _no_views(site: Site) -> str | None:
    if site.sizing.device.type != "cpu":
        return f"the device is {site.sizing.device.type}"
    return "forwards are captured, and it looks at host values" if site.sizing.captured else None
