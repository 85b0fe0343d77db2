"""What the table [plugins.paged_kv] says: sizes, and which attention runs; what cannot be is refused."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import engines
import pytest
from drafts import Told
from engines import finish, greedy, step, together
from equality import TOP, EngineOracle, answers, assert_answers, assert_equal
from families import save_family
from paging import assert_idle, start
from pydantic import ValidationError

from byref.answers.attention import PoolAttention
from byref.cli.main import main
from byref.contract import ByrefError
from byref_paged_kv import Options, PagedKVPlugin
from byref_paged_kv.budget import fixed_bytes, page_bytes
from byref_paged_kv.view_attention import ViewAttention


def bound(engine):
    return {type(one.call) for one in engine.parts.binder.bound if isinstance(one.call, PoolAttention)}


@pytest.mark.parametrize("given", ["64KiB", 65536])
def test_memory_in_bytes_gives_pages(short_llama, given):
    with start(short_llama, paged={"kv_memory": given, "page_size": 4}) as engine:
        (space,) = engine.parts.kv._paged
        taken = sum(pool.data.numel() * pool.data.element_size() for pool in engine.parts.kv._pools.values())
        page = page_bytes(engine.parts.sizing, 4)
        assert 65536 - page < taken + fixed_bytes(engine.parts.sizing) <= 65536
        assert space.pages.count == 65536 // page - 1
        together(engine, [[1, 2, 3]], greedy(5))
        assert_idle(engine)


def test_memory_as_a_fraction_of_what_is_free(short_llama):
    with start(short_llama, paged={"kv_memory": 0.001}) as engine:
        assert engine.parts.kv._paged[0].pages.count > 100


def test_too_little_memory_stops_the_start(short_llama):
    with pytest.raises(ByrefError, match=r"bytes hold no page"):
        start(short_llama, paged={"kv_memory": 100})


@pytest.mark.parametrize(
    "wrong", [{"num_pages": 3, "kv_memory": 0.5}, {"page_size": 0}, {"dtype": "int4"}, {"pages": 3}]
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValidationError):
        Options(**wrong)


@pytest.mark.parametrize(("dtype", "lossless"), [("auto", True), ("int8", False), ("fp8", False)])
def test_only_what_stores_all_bits_declares_itself_lossless(
    short_llama, tmp_path, monkeypatch, capsys, dtype, lossless
):
    with start(short_llama, paged={"dtype": dtype}) as engine:
        assert engine.parts.host.plugin("paged_kv").info.lossless is lossless
    assert PagedKVPlugin.info.lossless
    monkeypatch.chdir(tmp_path)
    (tmp_path / "byref.toml").write_text(f"[plugins]\nenable = ['paged_kv']\npaged_kv.dtype = '{dtype}'\n")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["plugins", "info", "paged_kv", "--json"])
    assert json.loads(capsys.readouterr().out)["lossless"] is lossless


@pytest.mark.parametrize(
    ("paged", "engine", "expected"),
    [
        ({}, {}, ViewAttention),
        ({"attention": "gather"}, {}, PoolAttention),
        ({}, {"capture": "tape"}, PoolAttention),
        ({"dtype": "int8"}, {}, PoolAttention),
    ],
)
def test_which_attention_runs_is_chosen_at_bind(short_llama, paged, engine, expected):
    with start(short_llama, paged=paged, **engine) as started:
        assert bound(started) == {expected}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no triton for this system")
def test_triton_is_there_and_not_taken_on_a_cpu(short_llama):
    assert find_spec("triton")
    with start(short_llama) as engine:
        assert bound(engine) == {ViewAttention}
    assert "byref_paged_kv.triton_attention" not in sys.modules


def test_plugins_info_names_the_attention_that_runs(short_llama, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = "[engine]\nmax_requests = 2\nmax_rows = 16\ncapture = 'off'\n"
    (tmp_path / "byref.toml").write_text(sizes + f"[model]\npath = '{short_llama}'\ndevice = 'cpu'\n")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["plugins", "info", "paged_kv", "--bound", "--json"])
    (bound,) = json.loads(capsys.readouterr().out)["bound"]
    assert (bound["asked for"], bound["layers"], bound["by"]) == ("AttentionSpec", "0-1", "paged_kv")
    assert bound["how"] == ViewAttention.about
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["plugins", "info", "paged_kv", "--bound"])
    assert ViewAttention.about in capsys.readouterr().out


@pytest.mark.parametrize(
    ("paged", "engine", "why"),
    [
        ({"attention": "triton"}, {}, "it needs CUDA"),
        ({"attention": "views"}, {"capture": "tape"}, "forwards are captured"),
        ({"attention": "views", "dtype": "fp8"}, {}, "the pool has a codec"),
    ],
)
def test_an_attention_that_cannot_run_stops_the_start(short_llama, paged, engine, why):
    with pytest.raises(ByrefError, match=why):
        start(short_llama, paged=paged, **engine)


@pytest.mark.parametrize("tree", [None, False, True], ids=["no drafts", "chains", "trees"])
@pytest.mark.parametrize(("page_size", "shared"), [(1, 30), (4, 28), (16, 16)])
def test_reading_a_shared_prefix_once_changes_nothing(short_llama, page_size, shared, tree, monkeypatch):
    """Requests that share a prefix decode together, joined later by one that does not."""
    monkeypatch.setattr("byref_paged_kv.view_attention.MANY_SHARED", 10)
    spans = []
    real = ViewAttention._common
    monkeypatch.setattr(ViewAttention, "_common", lambda *a: spans.append(real(*a)) or spans[-1])
    head = [7 * i % 250 for i in range(30)]
    prompts = [(*head, *(i + j for j in range(3 * i))) for i in range(1, 5)]
    params, other = [greedy(32 + i, logprobs=TOP) for i in range(4)], (5, 6, 7)
    with engines.start(short_llama) as plain:
        expected = answers(plain, [*prompts, other], [*params, greedy(12, logprobs=TOP)])
    plugins = {} if tree is None else {"told": Told}
    options = {} if tree is None else {"told": {"tree": tree, "most": 3, "right": 1.0}}
    with start(short_llama, plugins, options, paged={"page_size": page_size}) as engine:
        if plugins:
            told = engine.parts.host.plugin("told").instance
            told.reference = {p: t for p, (t, _) in zip([*prompts, other], expected, strict=True)}
        ids, done = [engine.add(p, one) for p, one in zip(prompts, params, strict=True)], {}
        for _ in range(4):
            step(engine, done)
        ids.append(engine.add(other, greedy(12, logprobs=TOP)))
        assert_answers(finish(engine, ids, done), expected)
        assert_idle(engine)
    found = {span and span.span[1] - span.span[0] for span in spans}
    assert found == {shared, None}


def test_prompts_behind_a_shared_prefix_read_it_once_too(short_llama, monkeypatch):
    monkeypatch.setattr("byref_paged_kv.view_attention.MANY_SHARED", 10)
    widths = []
    real = ViewAttention._read_shared
    monkeypatch.setattr(
        ViewAttention, "_read_shared", lambda self, q, *a: widths.append(q.shape[1]) or real(self, q, *a)
    )
    prompts = [[*(7 * i % 250 for i in range(30)), *(j + i * i for i in range(12))] for j in range(4)]
    params = [greedy(12, logprobs=TOP)] * 4
    with engines.start(short_llama) as plain:
        expected = answers(plain, prompts, params)
    with start(short_llama, paged={"page_size": 6}, chunk=30) as engine:
        assert_answers(together(engine, prompts, params), expected)
    assert set(widths) == {12, 1}


@pytest.mark.parametrize("window", [None, 12])
@pytest.mark.parametrize("many", [1, 256])
@pytest.mark.parametrize("most", [1, 3, 8])
def test_reading_in_place_changes_nothing(tmp_path, many, most, window, monkeypatch):
    """With and without scaled-dot-product attention, in pages that lie in one run, in a few, and in too many."""
    monkeypatch.setattr("byref_paged_kv.view_attention.MANY_KEYS", many)
    monkeypatch.setattr("byref_paged_kv.view_attention.MOST_SPANS", most)
    monkeypatch.setattr("byref_paged_kv.view_attention.SPAN_KEYS", 1)
    found = []
    real = ViewAttention._spans
    monkeypatch.setattr(ViewAttention, "_spans", lambda *a: found.append(real(*a)) or found[-1])
    windowed = {} if window is None else {"sliding_window": window}
    model = save_family(tmp_path, "Mistral" if window else "Llama", num_hidden_layers=2, **windowed)
    prompts = [list(range(3, 40)), [9, 8, 7], list(range(3, 30)), [4] * 20]
    with (
        engines.start(model) as plain,
        start(model, paged={"page_size": 3, "prefix_cache": False, "num_pages": 60}) as engine,
    ):
        oracle = EngineOracle(plain)
        # Pages with holes between them: every other one is somebody's, until all is over.
        for pages in {id(space.pages): space.pages for space in engine.parts.kv._paged}.values():
            taken = pages.take(24)
            pages.drop([page for page in taken if page % 6 not in (1, 2)], lambda page: False)
        for prompt in prompts:
            assert_equal(engine, oracle, [prompt], 24)
    runs = {len(spans) if spans else 0 for spans in found}
    assert max(runs) == min(most, max(runs))
    assert len(runs) > 1
