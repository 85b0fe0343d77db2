"""The prefix cache: what may be found, by whom, and until when."""

from __future__ import annotations

import random

import engines
import pytest
from checkpoints import VOCABULARY
from drafts import Told
from engines import finish, greedy, step, together
from paging import assert_idle, start
from pydantic import BaseModel

from byref.contract import API_VERSION, ByrefError, Plugin, PluginInfo, hookimpl
from byref_paged_kv.events import CacheReset, PageRemoved, PageStored
from byref_paged_kv.prefix import Content, chain, root, typed

DRAW = random.Random(3)
TEXT = [DRAW.randrange(VOCABULARY) for _ in range(120)]


class Rows(Plugin):
    """Counts the rows of prompts that are computed."""

    info = PluginInfo(api_version=API_VERSION)
    rows = 0

    @hookimpl
    def prepare_step(self, step):
        self.rows += sum(len(window.tokens) for window in step.plan.windows if window.prompt)


class Salted(Plugin):
    """A request may bring a part of the cache key: a tenant, an adapter."""

    class RequestOptions(BaseModel):
        salt: bool | int | float | str

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def request_added(self, request):
        if self.name in request.options:
            request.cache_key[self.name] = request.options[self.name].salt


def begin(path, *plugins, page_size=4, options=None, **engine):
    """An engine, its KV, and its counter of rows."""
    known = {"told": Told, "salted": Salted, "adapter": Salted}
    chosen = {"rows": Rows, **{name: known[name] for name in plugins}}
    paged = {"page_size": page_size, **engine.pop("paged", {})}
    started = start(path, chosen, options, paged=paged, **engine)
    return started, started.parts.kv, started.parts.host.plugin("rows").instance


def ask(engine, prompt, tokens=3, **request):
    return finish(engine, [engine.add(prompt, greedy(tokens), **request)])[0]


@pytest.mark.parametrize(("page_size", "found"), [(1, 15), (4, 12), (5, 15), (16, 0)])
def test_a_prompt_that_is_all_there_computes_its_last_page_again(short_llama, page_size, found):
    """At least its last token; at page granularity, since pages are shared whole."""
    engine, _, rows = begin(short_llama, page_size=page_size)
    with engine:
        first = ask(engine, TEXT[:16])
        assert (first.cached_tokens, rows.rows) == (0, 16)
        again = ask(engine, TEXT[:16])
        assert again.token_ids == first.token_ids
        assert (again.cached_tokens, rows.rows) == (found, 32 - found)
        assert_idle(engine)


def test_what_was_generated_is_found_too(short_llama):
    engine, _, _ = begin(short_llama)
    with engine:
        first = ask(engine, TEXT[:8], tokens=9)
        assert ask(engine, [*TEXT[:8], *first.token_ids]).cached_tokens == 16


SALTS = [1, True, "1", 1.0, 0, False, "", "tenant"]


def test_keys_of_different_type_or_name_never_meet(short_llama):
    engine, _, _ = begin(short_llama, "salted", "adapter")
    with engine:
        assert ask(engine, TEXT[:16]).cached_tokens == 0
        for name in ("salted", "adapter"):
            for salt in SALTS:
                assert ask(engine, TEXT[:16], options={name: {"salt": salt}}).cached_tokens == 0, (name, salt)
        for name in ("salted", "adapter"):
            for salt in SALTS:
                assert ask(engine, TEXT[:16], options={name: {"salt": salt}}).cached_tokens == 12, (name, salt)
        assert ask(engine, TEXT[:16]).cached_tokens == 12


class SameName:
    """Its parts print alike, and are not the same."""

    def __repr__(self):
        return "part"


def test_a_digest_alone_is_not_believed(short_llama):
    engine, kv, _ = begin(short_llama)
    with engine:
        ask(engine, TEXT[:16])
        index = kv._paged[0].index
        (digest, *_) = chain(root(()), TEXT[:16], 4)
        assert index.find(Content(digest, (), tuple(TEXT[:4])))
        assert not index.find(Content(digest, (), tuple(TEXT[4:8])))
        assert not index.find(Content(digest, typed({"salted": "x"}), tuple(TEXT[:4])))
    one, other = (root(typed({"key": SameName()})) for _ in range(2))
    assert one == other
    assert typed({"key": SameName()}) != typed({"key": SameName()})


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_only_accepted_tokens_are_found(short_llama, tree):
    prompts = [tuple(TEXT[i : i + 9]) for i in range(4)]
    with engines.start(short_llama) as plain:
        expected = [done.token_ids for done in together(plain, prompts, greedy(24))]
    engine, kv, _ = begin(short_llama, "told", page_size=2, options={"told": {"tree": tree}})
    with engine:
        told = engine.parts.host.plugin("told").instance
        told.reference = dict(zip(prompts, expected, strict=True))
        done = together(engine, prompts, greedy(24))
        assert [one.token_ids for one in done] == expected
        assert {0, 1} <= set(told.accepted)
        true = {d for p, t in zip(prompts, expected, strict=True) for d in chain(root(()), [*p, *t], 2)}
        assert set(kv._paged[0].index._pages) <= true
        assert len(kv._paged[0].index) >= len(prompts) * 10


@pytest.mark.parametrize("chunk", [7, 64])
def test_a_cold_burst_computes_its_prefix_once(short_llama, chunk):
    engine, kv, rows = begin(short_llama, chunk=chunk)
    with engine:
        prompts = [[*TEXT[:40], i, i + 1] for i in range(6)]
        done = together(engine, prompts, greedy(4))
        assert rows.rows <= 42 + 5 * 2
        assert sorted(one.cached_tokens for one in done) == [0, *[40] * 5]
        assert kv.figures()["hit_rate"] == pytest.approx(200 / (6 * 42))
        assert_idle(engine)


def test_a_follower_waits_alone(short_llama):
    """Those behind it in the queue start before it, and take no harm from it."""
    engine, _, rows = begin(short_llama, chunk=8)
    with engine:
        prompts = [TEXT[:41], [*TEXT[:40], 7], TEXT[50:70], [*TEXT[:40], 9], TEXT[80:90]]
        ids = [engine.add(prompt, greedy(4)) for prompt in prompts]
        engine.step()
        assert [one.id for one in engine._planner.running] == [ids[0], ids[2], ids[4]]
        assert [one.id for one in engine._planner.waiting] == [ids[1], ids[3]]
        done = finish(engine, ids)
        assert [one.cached_tokens for one in done] == [0, 40, 0, 40, 0]
        assert rows.rows == 41 + 1 + 20 + 1 + 10
        assert_idle(engine)


def test_behind_one_that_waits_for_memory_nobody_starts(short_llama):
    engine, _, _ = begin(short_llama, paged={"num_pages": 12})
    with engine:
        ids = [engine.add(prompt, greedy(8)) for prompt in (TEXT[:30], TEXT[40:70], TEXT[80:83])]
        engine.step()
        assert [one.id for one in engine._planner.running] == ids[:1]
        finish(engine, ids)
        assert_idle(engine)


def test_a_follower_goes_on_when_the_leader_is_aborted(short_llama):
    engine, _, rows = begin(short_llama, chunk=8)
    with engine:
        leader, follower = (engine.add(TEXT[:41], greedy(4)) for _ in range(2))
        engine.step()
        engine.abort(leader)
        (done,) = finish(engine, [follower])
        assert done.cached_tokens == 8
        assert rows.rows == 41
        assert_idle(engine)


def test_the_tail_of_what_was_unused_for_longest_goes_first(short_llama):
    engine, kv, _ = begin(short_llama, max_requests=1, paged={"num_pages": 10})
    with engine:
        ask(engine, TEXT[:17], tokens=1)  # 4 pages are kept, and 1 is free again
        ask(engine, TEXT[50:62], tokens=1)  # 3 pages kept, 3 free
        assert kv.figures()["evictions"] == 0
        assert kv.figures()["cached_pages"] == 7
        ask(engine, TEXT[80:100], tokens=1)  # 5 pages: the free ones, and the last two of the first request's
        assert kv.figures()["evictions"] == 2
        assert ask(engine, TEXT[:17], tokens=1).cached_tokens == 8


def test_a_hole_ends_the_hit(short_llama):
    engine, kv, _ = begin(short_llama)
    with engine:
        ask(engine, TEXT[:24])
        space = kv._paged[0]
        (*_, third, _, _, _) = chain(root(()), TEXT[:24], 4)
        page = space.index._pages[third]
        space.index.forget(page)
        space.pages.forget(page)
        assert ask(engine, TEXT[:24]).cached_tokens == 8
        assert_idle(engine)


def test_after_a_reset_nothing_is_found(short_llama):
    engine, kv, _ = begin(short_llama)
    with engine:
        ask(engine, TEXT[:24])
        kv.reset()
        assert kv.figures()["cached_pages"] == 0
        assert ask(engine, TEXT[:24]).cached_tokens == 0
        assert ask(engine, TEXT[:24]).cached_tokens == 20


def test_a_reset_while_requests_run_leaves_them_right_and_unfound(short_llama):
    with engines.start(short_llama) as plain:
        (expected,) = together(plain, [TEXT[:24]], greedy(12))
    engine, kv, _ = begin(short_llama, chunk=8)
    with engine:
        running, done = engine.add(TEXT[:24], greedy(12)), {}
        for _ in range(5):
            step(engine, done)
        kv.reset()
        assert finish(engine, [running], done)[0].token_ids == expected.token_ids
        assert kv.figures()["cached_pages"] == 0
        assert ask(engine, TEXT[:24], tokens=12).token_ids == expected.token_ids
        assert ask(engine, TEXT[:24]).cached_tokens == 20
        assert_idle(engine)


def test_a_request_that_scores_its_prompt_computes_all_of_it(short_llama):
    engine, _, _ = begin(short_llama)
    with engine:
        plain = ask(engine, TEXT[:24])
        (scored,) = together(engine, [TEXT[:24]], greedy(3, prompt_logprobs=1))
        assert scored.cached_tokens == 0
        assert len([one for one in scored.prompt_logprobs if one]) == 23
        assert scored.token_ids == plain.token_ids


def test_without_the_prefix_cache_nothing_is_kept(short_llama):
    engine, kv, _ = begin(short_llama, paged={"prefix_cache": False})
    with engine:
        for _ in range(2):
            assert ask(engine, TEXT[:24]).cached_tokens == 0
        assert kv.figures()["cached_pages"] == 0


def test_what_can_never_fit_is_refused_and_others_go_on(short_llama):
    engine, _, _ = begin(short_llama, paged={"num_pages": 10})
    with engine:
        other = engine.add(TEXT[:20], greedy(8))
        engine.step()
        try:
            (completion,) = together(engine, [TEXT[:50]], greedy(8))
            error = completion.error
        except ByrefError as raised:
            error = raised
        assert "58" in str(error)
        assert "40" in str(error)
        assert len(finish(engine, [other])[0].token_ids) == 8
        assert_idle(engine)


def test_events_tell_what_can_be_found(short_llama):
    engine, kv, _ = begin(short_llama, max_requests=2, paged={"num_pages": 14})
    events, found = [], {}
    with engine:
        kv.listen(events.append)
        for i in range(0, 60, 7):
            together(engine, [TEXT[:18], TEXT[i : i + 21]], greedy(5))
        assert kv.figures()["evictions"] > 0
    for event in events:
        match event:
            case PageStored():
                assert event.digest not in found
                assert next(chain(event.before, event.tokens, 4)) == event.digest
                found[event.digest] = event
            case PageRemoved():
                del found[event.digest]
    assert found.keys() == set(kv._paged[0].index._pages)
    kv.reset()
    assert events[-1] == CacheReset()
