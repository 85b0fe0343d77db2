"""Preempted requests in host memory: nothing is computed twice, nothing changes, and all of it comes back."""

from __future__ import annotations

import random

import engines
import pytest
from checkpoints import VOCABULARY
from drafts import Told
from engines import finish, greedy, together
from equality import TOP, answers, assert_answers
from families import save_family
from gated_delta import Delta, save_delta
from paging import assert_idle, start

from byref.contract import API_VERSION, Plugin, PluginInfo, hookimpl
from byref_paged_kv.swap import Store

DRAW = random.Random(21)
PROMPTS = [tuple(DRAW.randrange(VOCABULARY) for _ in range(n)) for n in (12, 25, 7, 18, 30, 3)]
PARAMS = [greedy(40 + i, logprobs=TOP) for i in range(len(PROMPTS))]
NEED = sum(len(prompt) + params.max_tokens for prompt, params in zip(PROMPTS, PARAMS, strict=True))
DRAFTS = {"delta": {"drafts": 5}, "told": {"tree": True}}
KINDS = {
    "whole": {},
    "windowed": {},
    "stateful": {"delta": Delta},
    "with drafts": {"delta": Delta, "told": Told},
}


class Rows(Plugin):
    """Counts the rows that are computed."""

    info = PluginInfo(api_version=API_VERSION)
    rows = 0

    @hookimpl
    def prepare_step(self, step):
        self.rows += sum(len(window.tokens) for window in step.plan.windows)


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    """A model, the plugins it runs with, their options, and what it answers without pages."""
    kind, folder = request.param, tmp_path_factory.mktemp("model")
    plugins = KINDS[kind]
    path = (
        save_delta(folder) if "delta" in plugins else save_family(folder, "Gemma 3" if kind == "windowed" else "Llama")
    )
    with engines.start(path, {name: cls for name, cls in plugins.items() if name != "told"}) as engine:
        expected = answers(engine, PROMPTS, PARAMS)
    return path, plugins, {name: DRAFTS[name] for name in plugins if "told" in plugins}, expected


def begin(case, memory, **engine):
    path, plugins, options, expected = case
    paged = {"page_size": 4, "prefix_cache": False, "swap_memory": memory, **engine.pop("paged", {})}
    started = start(
        path, {**plugins, "rows": Rows}, options, paged=paged, kv_tokens=engine.pop("kv_tokens", 132), **engine
    )
    if "told" in plugins:
        told = started.parts.host.plugin("told").instance
        told.reference = {prompt: tokens for prompt, (tokens, _) in zip(PROMPTS, expected, strict=True)}
    return started


@pytest.mark.parametrize("chunk", [5, 64])
def test_what_was_swapped_out_comes_back_as_it_was(case, chunk):
    with begin(case, "4MiB", chunk=chunk) as engine:
        done = together(engine, PROMPTS, PARAMS)
        assert_answers(done, case[3])
        figures = engine.parts.kv.figures()
        assert 0 < figures["swapped_in"] <= figures["preemptions"]
        assert {one.cached_tokens for one in done} == {0}
        if "told" not in case[1]:  # every row once: the last token of each is chosen and never computed
            assert engine.parts.host.plugin("rows").instance.rows == NEED - len(PROMPTS)
        assert_idle(engine)


def test_beside_the_prefix_cache(case):
    with begin(case, "4MiB", paged={"prefix_cache": True, "checkpoint_pages": 2}) as engine:
        for _ in range(2):
            assert_answers(together(engine, PROMPTS, PARAMS), case[3])
            assert_idle(engine)
        assert engine.parts.kv.figures()["swapped_in"] > 0


def test_what_finds_no_room_in_host_memory_is_computed_again(case):
    with begin(case, 6000) as engine:
        assert_answers(together(engine, PROMPTS, PARAMS), case[3])
        assert engine.parts.kv.figures()["preemptions"] > 0
        assert_idle(engine)


def test_a_request_that_ends_while_it_is_swapped_out_leaves_nothing(case):
    with begin(case, "4MiB") as engine:
        ids = [engine.add(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        swap, ended = engine.parts.kv._swap, []
        while not engine.idle:
            engine.step()
            for id in set(swap._saved) - set(ended[1:]):
                engine.abort(id)
                ended.append(id)
                assert id not in swap._saved
        assert ended
        assert set(ended) < set(ids)
        assert_idle(engine)


def test_a_reset_forgets_host_memory(case):
    with begin(case, "4MiB") as engine:
        ids = [engine.add(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        while not engine.parts.kv._swap.used:
            engine.step()
        engine.parts.kv.reset()
        assert not engine.parts.kv._swap.used
        assert_answers(finish(engine, ids), case[3])
        assert_idle(engine)


def test_without_copying_back_it_turns_red(case, monkeypatch):
    real = Store.copy
    monkeypatch.setattr(Store, "copy", lambda store, pairs, back=False: None if back else real(store, pairs))
    with begin(case, "4MiB") as engine, pytest.raises(AssertionError):
        assert_answers(together(engine, PROMPTS, PARAMS), case[3])
