"""What every forward of a round is told: one owner of lengths, a slot of its own for each row, rows that exist."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import doubles
import pytest
import torch
from doubles import drafter, start_with
from engines import one_per_step, together

from byref.contract import API_VERSION, Plugin, PluginInfo, SamplingParams, Window, hookimpl
from byref.contract.roles import BATCH, DRAFT, TARGET
from byref.engine.layout import lay_out

TRAINED = Path(__file__).parents[3] / "tests" / "data" / "checkpoints"
PROMPTS = [[5, 9, 77, 3, 2, 8, 5, 9, 77], [100, 2, 3, 40], [7, 7, 7], list(range(30, 50))]
MOST = 3
PARAMS = SamplingParams(max_tokens=14, temperature=0.8, top_k=30, seed=2, ignore_eos=True)
PADDED = {"capture": "tape"}
"""Forwards are padded to buckets where they are captured."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One forward, as its rows are described to it."""

    role: str
    draft_step: int
    rows: int
    windows: tuple[Window, ...]
    starts: list[int]
    offsets: list[int]
    lengths: list[int]
    index: list[int]
    frontier: list[int]
    from_row: list[int]
    slots: list[int]
    """Where each row's entry lies."""
    pointers: tuple[int, ...]


class Rows(Plugin):
    """Notes every forward, and what drafting does to the lengths of the target."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.seen: list[Seen] = []
        self.commits = 0

    @hookimpl
    def bind(self, spec, site):
        self.kv = site.kv

    @hookimpl
    def prepare_step(self, step):
        """What the step before left: a round of draft forwards touches no length of the target."""
        for window in step.plan.windows:
            assert step.requests[window.request].lengths[TARGET] == window.start

    @hookimpl(trylast=True)
    def prepare_forward(self, ctx):
        batch, role = ctx.state(BATCH), ctx.states.role
        if batch._recording:
            return
        pool = next(pool for (owner, _), pool in self.kv._pools.items() if owner == role)
        fields = [batch.index(ctx), batch.frontier(ctx), batch.from_row(ctx)]
        slots = pool.placement.place(batch.rows(ctx), batch.index(ctx))
        owned = (batch.offsets(ctx), batch.lengths(ctx), *fields)
        self.seen.append(
            Seen(
                role,
                ctx.draft_step,
                ctx.rows,
                batch.host(),
                batch.starts(ctx).tolist(),
                batch.offsets(ctx).tolist(),
                batch.lengths(ctx).tolist(),
                *(field.tolist() for field in fields),
                torch.where(batch.rows(ctx) > 0, slots, 0).tolist(),
                tuple(tensor.data_ptr() for tensor in owned),
            )
        )


CASES = {
    "double": ("scripted_model", {"right": 2}, {}),
    "pages": ("scripted_model", {"right": 2}, {"paged_kv": {"page_size": 4, "prefix_cache": False}}),
    "eagle": ("eagle", {}, {}),
    "mtp": ("mtp", {}, {"paged_kv": {"page_size": 4, "prefix_cache": False}}),
}


@pytest.fixture(scope="module", params=CASES)
def seen(request, one_layer, short_llama):
    """Every forward of a few requests that come one after the other."""
    name, wishes, tables = CASES[request.param]
    target = {"eagle": TRAINED / "bytes-llama", "mtp": TRAINED / "bytes-deepseek"}.get(name, short_llama)
    model = {"eagle": TRAINED / "bytes-llama-eagle3", "mtp": None}.get(name, one_layer)
    table = {"max_draft_tokens": MOST, "options": {"model": str(model)} if model else {}}
    with start_with(target, name, table, {"rows": Rows}, tables, chunk=8) as engine:
        rows = doubles.plugin(engine, "rows")
        if name == "scripted_model":
            drafter(engine).reference = {tuple(p): [1] * 20 for p in PROMPTS}
            drafter(engine).right = wishes["right"]
        rows.seen.clear()  # the warm-up
        together(engine, PROMPTS, PARAMS)
        one_per_step(engine, PROMPTS, PARAMS)
        state = getattr(drafter(engine), "state", None)
        return rows.seen, None if state is None else state.rows


def test_lengths_have_one_owner_whose_memory_never_moves(seen):
    """Invariant I5, and of the draft role as well."""
    for role in (TARGET, DRAFT):
        assert len({one.pointers for one in seen[0] if one.role == role}) == 1


def test_every_forward_is_told_its_own_lengths(seen):
    """Invariants I6, I7 and I10: at every draft step, of a prompt's rows and of a decode's."""
    for one in seen[0]:
        live = len(one.windows)
        assert one.offsets[:live] == [window.start for window in one.windows]
        assert one.lengths[:live] == [window.end for window in one.windows]
        for window, row in zip(one.windows, one.starts, strict=False):
            at = slice(row, row + len(window.tokens))
            assert one.index[at] == list(range(window.start, window.end))
            assert one.frontier[at] == [i + 1 for i in one.index[at]]


def test_draft_steps_go_on_where_the_step_before_ended(seen):
    """Invariants I6 and I22: each step writes an entry of its own."""
    ends: dict[str, int] = {}
    written: dict[str, set[int]] = {}
    steps = 0
    for one in seen[0]:
        if one.role == TARGET:
            ends, written = {}, {}
            continue
        for window, row in zip(one.windows, one.starts, strict=False):
            slots = one.slots[row : row + len(window.tokens)]
            if one.draft_step:
                assert window.start == ends[window.request]
                assert not written[window.request] & set(slots)
                steps += 1
            ends[window.request] = window.end
            written.setdefault(window.request, set()).update(slots)
    assert steps > 20


def test_rows_of_a_window_are_written_to_slots_of_their_own(seen):
    """Invariant I21: distinct, none the sink, request by request; the last is where plain decoding would write."""
    plain = {}
    for one in seen[0]:
        used = [slot for window, row in zip(one.windows, one.starts, strict=False) for slot in one.slots[row : row + len(window.tokens)]]
        assert 0 not in used
        assert len(set(used)) == len(used)
        plain |= {(one.role, w.row, one.index[r]): one.slots[r] for w, r in zip(one.windows, one.starts, strict=False)}
    assert plain


def test_what_a_head_continues_is_a_row_of_the_forward_before(seen):
    """Invariants I12 and I13: the rows that were accepted, of the same request; buffers hold every row there is."""
    forwards, most = seen
    if most is None:
        pytest.skip("fed by tokens alone")
    before: dict[str, tuple[int, int]] = {}
    for one in forwards:
        assert one.rows <= most
        for window, row in zip(one.windows, one.starts, strict=False):
            for at in range(row, row + len(window.tokens)) if one.role == DRAFT else ():
                first, n = before[window.request]
                assert first <= one.from_row[at] % most < first + n
        before = {
            w.request: (row, len(w.tokens)) for w, row in zip(one.windows, one.starts, strict=False)
        }


def test_filling_twice_is_filling_once(one_layer, short_llama):
    """Invariant I11, and nothing of a larger batch is left in a smaller one (I16)."""
    table = {"max_draft_tokens": MOST, "options": {"model": str(one_layer)}}
    with start_with(short_llama, "draft_model", table) as engine:
        unit = engine.parts.units[1]
        large = [Window(f"r{i}", i + 1, DRAFT, 5 * i, tuple(range(1, 4)), 2) for i in range(6)]
        small = [Window("r1", 2, DRAFT, 7, (9, 8), 1), Window("r0", 1, DRAFT, 3, (4,))]
        tables = []
        for order in ([small], [small, small], [large, small]):
            for windows in order:
                layout = lay_out(windows, frozenset(), 64)
                unit.batch.fill(windows, layout, {})
            rows, requests = unit.batch.buffers().values()
            tables.append((rows[:, : layout.rows].clone(), requests[:, : layout.requests + 1].clone()))
        for other in tables[1:]:
            assert all(torch.equal(a, b) for a, b in zip(tables[0], other, strict=True))


def test_padding_rows_see_something_and_nobody_sees_them(one_layer, short_llama):
    """Invariant I23: every row, padding included, has an entry to attend to, and no fewer than the rows of its window."""
    table = {"max_draft_tokens": MOST, "options": {"model": str(one_layer)}}
    with start_with(short_llama, "scripted_model", table, {"rows": Rows}, **PADDED) as engine:
        unit = engine.parts.units[0]
        windows = [Window("r0", 1, TARGET, 0, (5, 6, 7, 8), 3), Window("r1", 2, TARGET, 9, (5,))]
        layout = lay_out(windows, engine.parts.sizing.captured, 64)
        unit.batch.fill(windows, layout, {})
        rows, requests = unit.batch.buffers().values()
        assert layout.rows > 5
        assert layout.requests * layout.rows_per_request == layout.rows
        live = [0, 1, 2, 3, layout.rows_per_request]
        padding = [row for row in range(layout.rows) if row not in live]
        assert (rows[5, : layout.rows] >= 1).all()
        assert (rows[4, padding] == 0).all()
        assert requests[2, :2].tolist() == [4, 10]
