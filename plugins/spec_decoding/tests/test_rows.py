"""What every forward of a round is told: one owner of lengths, a slot of its own for each row, rows that exist."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import doubles
import pytest
import torch
from doubles import drafter, start_with
from engines import one_per_step, together
from rounds import Rows, Seen

from byref.contract import SamplingParams, Window
from byref.contract.roles import DRAFT, TARGET
from byref.engine.batch import FRONTIER, LENGTHS, ROWS, WANTED
from byref.engine.layout import lay_out
from byref_spec_decoding.state import SpecForwardState

TRAINED = Path(__file__).parents[3] / "tests" / "data" / "checkpoints"
PROMPTS = [[5, 9, 77, 3, 2, 8, 5, 9, 77], [100, 2, 3, 40], [7, 7, 7], list(range(30, 50))]
MOST = 3
PARAMS = SamplingParams(max_tokens=14, temperature=0.8, top_k=30, seed=2, ignore_eos=True)


class Run(NamedTuple):
    forwards: list[Seen]
    state: SpecForwardState | None
    """Of a drafter that is fed hidden states."""


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
        return Run(rows.seen, getattr(drafter(engine), "state", None))


def test_lengths_have_one_owner_whose_memory_never_moves(seen):
    """Invariant I5, and of the draft role as well."""
    for role in (TARGET, DRAFT):
        assert len({one.pointers for one in seen.forwards if one.role == role}) == 1


def test_every_forward_is_told_its_own_lengths(seen):
    """Invariants I6, I7 and I10: at every draft step, of a prompt's rows and of a decode's."""
    for one in seen.forwards:
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
    for one in seen.forwards:
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
    """Invariant I21: distinct, and none the sink."""
    for one in seen.forwards:
        used = [
            one.slots[row + i]
            for window, row in zip(one.windows, one.starts, strict=False)
            for i in range(len(window.tokens))
        ]
        assert 0 not in used
        assert len(set(used)) == len(used)


@pytest.mark.parametrize("seen", ["eagle", "mtp"], indirect=True)
def test_what_a_head_continues_is_a_row_of_the_forward_before(seen):
    """Invariants I12 and I13: a row of the same request, and buffers hold every row there is."""
    before: dict[str, range] = {}
    for one in seen.forwards:
        assert one.rows <= seen.state.rows
        spans = {w.request: range(row, row + len(w.tokens)) for w, row in zip(one.windows, one.starts, strict=False)}
        for request, span in spans.items() if one.role == DRAFT else ():
            assert all(one.from_row[row] % seen.state.rows in before[request] for row in span)
        before = spans


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
            lent = [rows[:WANTED, : layout.rows], rows[WANTED, : layout.logit_rows], requests[:, : layout.requests]]
            tables.append([table.clone() for table in lent])
        for other in tables[1:]:
            assert all(torch.equal(a, b) for a, b in zip(tables[0], other, strict=True))


def test_padding_rows_see_something(one_layer, short_llama):
    """Invariant I23: every row, padding included, has an entry to attend to. Forwards that are captured are padded."""
    table = {"max_draft_tokens": MOST, "options": {"model": str(one_layer)}}
    with start_with(short_llama, "scripted_model", table, {"rows": Rows}, capture="tape") as engine:
        unit = engine.parts.units[0]
        windows = [Window("r0", 1, TARGET, 0, (5, 6, 7, 8), 3), Window("r1", 2, TARGET, 9, (5,))]
        layout = lay_out(windows, engine.parts.sizing.captured, 64)
        unit.batch.fill(windows, layout, {})
        rows, requests = unit.batch.buffers().values()
        assert layout.rows > 5
        assert layout.requests * layout.rows_per_request == layout.rows
        live = [0, 1, 2, 3, layout.rows_per_request]
        padding = [row for row in range(layout.rows) if row not in live]
        assert (rows[FRONTIER, : layout.rows] >= 1).all()
        assert (rows[ROWS, padding] == 0).all()
        assert requests[LENGTHS, :2].tolist() == [4, 10]
