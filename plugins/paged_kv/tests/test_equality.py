"""An engine with pages equals the one without plugins, for every page size and chunk, and so do its pairs."""

from __future__ import annotations

import random

import engines
import pytest
from checkpoints import VOCABULARY
from engines import finish, greedy, one_per_step, together
from equality import TOP, EngineOracle, assert_equal, assert_tokens
from families import save_family
from paging import assert_idle, start

from byref.contract import SamplingParams

TOKENS = 64
DRAW = random.Random(5)
SHARED = [DRAW.randrange(VOCABULARY) for _ in range(40)]
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(n)] for n in (1, 17, 30, 4)]
PROMPTS += [[*SHARED, 1, 2, 3], [*SHARED, 7], SHARED[:33], SHARED[:32]]


class Kept(EngineOracle):
    """An oracle that is asked once for each text."""

    def __init__(self, engine):
        super().__init__(engine)
        self._tokens, self._scores = {}, {}

    def tokens(self, prompt, n):
        key = (tuple(prompt), n)
        if key not in self._tokens:
            self._tokens[key] = super().tokens(prompt, n)
        return self._tokens[key]

    def scores(self, ids):
        key = tuple(ids)
        if key not in self._scores:
            self._scores[key] = super().scores(ids)
        return self._scores[key]


@pytest.fixture(scope="module")
def oracle(tiny_llama):
    with engines.start(tiny_llama) as engine:
        yield Kept(engine)


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_pages_and_chunks_change_nothing(tiny_llama, oracle, page_size, chunk):
    with start(tiny_llama, paged={"page_size": page_size}, chunk=chunk) as engine:
        assert_equal(engine, oracle, PROMPTS, TOKENS, one_per_step)
        if page_size <= 16:
            assert engine.parts.kv.figures()["hit_tokens"] >= 64
        assert_idle(engine)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_short_pool_preempts_and_changes_nothing(tiny_llama, oracle, page_size):
    with start(tiny_llama, paged={"page_size": page_size}, kv_tokens=256, chunk=16) as engine:
        prompts = [[i, *prompt] for i, prompt in enumerate(PROMPTS)]
        done = together(engine, prompts, greedy(TOKENS, logprobs=TOP))
        for one, prompt in zip(done, prompts, strict=True):
            tokens = oracle.tokens(prompt, TOKENS)
            assert_tokens(one, tokens, oracle.scores([*prompt, *tokens])[len(prompt) :])
            assert one.cached_tokens == 0
        assert engine.parts.kv.figures()["preemptions"] > 0
        assert_idle(engine)


def test_who_is_aborted_while_it_waits_for_memory_is_forgotten(tiny_llama):
    """Another request may take its id, and is told what was cached for it."""
    prompts = [[40 + i, 3, 5, 7, 11, 13, 17, 19, 23] for i in range(4)]
    with start(tiny_llama, paged={"page_size": 4, "num_pages": 12}) as engine:
        ids = [engine.add(prompt, greedy(24)) for prompt in prompts]
        while not (preempted := [one.id for one in engine._planner.waiting if one.generated]):
            engine.step()
        engine.abort(preempted[0])
        finish(engine, [id for id in ids if id not in preempted])
        for id in preempted[1:]:
            engine.abort(id)
        assert_idle(engine)
        for _ in range(2):
            (again,) = finish(engine, [engine.add(prompts[0], greedy(1), id=preempted[0])])
        assert again.cached_tokens == 8


@pytest.fixture(scope="module", params=["Qwen3", "Gemma 3", "Mistral"])
def family(request, tmp_path_factory):
    """A tiny model of another family, and its oracle; two of them have windows."""
    path = save_family(tmp_path_factory.mktemp("family"), request.param)
    with engines.start(path) as engine:
        yield path, Kept(engine)


def test_who_is_preempted_scores_its_prompt_once(tiny_llama):
    """Then prompt and answer are computed again together, in chunks: nobody asks for the scores of a row in between."""
    params = greedy(24, logprobs=2, prompt_logprobs=2)
    prompts = [[40 + i, 3, 5, 7, 11, 13, 17, 19, 23] for i in range(4)]
    with engines.start(tiny_llama) as plain:
        expected = [plain.generate([prompt], params)[0] for prompt in prompts]
    with start(tiny_llama, paged={"page_size": 4, "num_pages": 12}, max_rows=8, chunk=6) as engine:
        found = together(engine, prompts, params)
        assert engine.parts.kv.figures()["preemptions"] > 0
        assert_idle(engine)
    for one, other in zip(found, expected, strict=True):
        assert one.error is None
        assert one.token_ids == other.token_ids
        for mine, theirs in ((one.prompt_logprobs[1:], other.prompt_logprobs[1:]), (one.logprobs, other.logprobs)):
            assert [list(scores) for scores in mine] == [list(scores) for scores in theirs]
            assert all(a == pytest.approx(b, abs=1e-4) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 16), (4, 3), (4, 64), (16, 1), (64, 16)])
def test_other_families_are_served_alike(family, page_size, chunk):
    path, oracle = family
    with start(path, paged={"page_size": page_size}, chunk=chunk) as engine:
        assert_equal(engine, oracle, PROMPTS, TOKENS, one_per_step)
        assert_idle(engine)


def test_a_short_pool_preempts_windows_too(family):
    path, oracle = family
    with start(path, paged={"page_size": 4}, kv_tokens=160, chunk=16) as engine:
        assert_equal(engine, oracle, PROMPTS, TOKENS)
        assert_idle(engine)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(("page_size", "chunk"), [(16, 16), (4, 64)])
def test_smollm2_is_served_alike(smollm2, page_size, chunk):
    path, oracle, prompts = smollm2
    sizes = {"chunk": chunk, "max_context": 256, "max_requests": 4}
    with start(path, paged={"page_size": page_size}, **sizes) as engine:
        assert_equal(engine, oracle, prompts, TOKENS, one_per_step)
        assert engine.parts.kv.figures()["hit_tokens"] > 0
        assert_idle(engine)


@pytest.fixture(scope="module")
def smollm2():
    """The published model, its oracle, and prompts of which two begin alike."""
    from byref.contract import ModelError
    from byref.loading import open_checkpoint

    try:
        path = open_checkpoint("smollm2").path
    except ModelError as error:
        pytest.skip(f"needs the real model: {error}")
    with engines.start(path, max_context=256, max_requests=1) as engine:
        ids = list(engine.tokenizer.encode("A page of the cache holds the keys and values of sixteen tokens. " * 3))
        yield path, Kept(engine), [[*ids[:37], 504], [*ids[:34], 28], ids[5:12]]


@pytest.mark.parametrize(("page_size", "room"), [(1, 0), (4, 0), (16, 0), (4, 160)])
def test_choices_share_the_pages_of_their_prompt_and_change_nothing(tiny_llama, page_size, room):
    params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, n=4, seed=5)
    with engines.start(tiny_llama) as plain:
        expected = [[one.token_ids for one in done.choices] for done in together(plain, PROMPTS[:6], params)]
    with start(tiny_llama, paged={"page_size": page_size}, kv_tokens=room, max_requests=12) as engine:
        for _ in range(2):
            done = together(engine, PROMPTS[:6], params)
            assert [[one.token_ids for one in each.choices] for each in done] == expected
            assert_idle(engine)
        assert not room or engine.parts.kv.figures()["preemptions"] > 0
