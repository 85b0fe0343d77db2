"""Starts engines with the plugin, fills free pages with rubbish, and looks whether every page came back."""

from __future__ import annotations

import engines
import torch

from byref.engine import Engine
from byref_paged_kv import PagedKVPlugin


def start(path, plugins=None, options=None, *, paged=None, **engine) -> Engine:
    """As `engines.start`, with the plugin; `paged` is its table."""
    tables = {**(options or {}), "paged_kv": paged or {}}
    return engines.start(path, {"paged_kv": PagedKVPlugin, **(plugins or {})}, tables, **engine)


def assert_idle(engine: Engine) -> None:
    """Nothing runs, waits or is held; what is not free is cached."""
    engines.assert_idle(engine)
    kv = engine.parts.kv
    for space in kv._paged:
        assert not space.held
        assert not space._host.any()
        assert space.pages.used == 0
        assert space.pages.available == space.pages.count
        assert len(space.index) == space.pages.cached
    for space in kv._states:
        assert space.pages.used == 0
        assert len(space.index) == space.pages.cached
        assert not space._found
    assert kv._swap is None or kv._swap.used == 0 == len(kv._swap._saved)
    assert not kv._granted
    assert not kv._restored
    assert not kv._rows
    assert not kv._sharing._threads
    assert not kv._sharing._pending


def fill_free(engine: Engine, value: float) -> None:
    """Fill every slot but the sink that holds nothing computed: free pages, the null page, what is reserved only."""
    kv = engine.parts.kv
    for (role, _), pool in kv._pools.items():
        space = pool.placement
        free = torch.ones(len(pool.data), dtype=torch.bool)
        free[0] = False
        for page in space.pages._cached:
            free[page * space.per_page : (page + 1) * space.per_page] = False
        for pages in space.held.values():
            for page in pages:
                if space.index.holds(page):
                    free[page * space.per_page : (page + 1) * space.per_page] = False
        for request in engine._planner.running:
            entries = range(request.lengths.get(role, 0) // space.geometry.stride)
            free[[space.at(request.row, entry) for entry in entries]] = False
        free[1 : space.per_page] = True
        pool.data[free] = value


def assert_tables_are_scrubbed(engine: Engine) -> None:
    """A request row that does not run has no page, and nobody has more than he reserved."""
    running = {request.row for request in engine._planner.running}
    for space in engine.parts.kv._paged:
        for row, table in enumerate(space._host.tolist()):
            pages = space.held.get(row, [])
            assert row in running or not pages
            assert table == [*pages, *[0] * (len(table) - len(pages))]
