"""Every seam at once, on the default KV: a draft role fed by hidden states, taps, strided, windowed and versioned
pools, a codec, a grammar that looks at drafts; commits of chains and trees leave what the oracle holds."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from engines import assert_idle, greedy, one_per_step, start, together
from seams import Grammar, Script, Seams, Tap, expected

from byref.contract import ByrefError, SamplingParams, hookimpl
from byref.engine import processing
from byref.kv.pools import SlotPool

PROMPTS = [[5, 9, 77, 3, 2, 8], [100, 2, 3, 40, 5, 6, 70, 8, 9, 10, 11, 12, 13, 14], [7, 7, 7]]
TOKENS = 16
DRAFTS = 4
PARAMS = {
    "greedy": greedy(TOKENS),
    "sampled": SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.9, top_k=40, top_p=0.95, seed=11),
}


@pytest.fixture(scope="module", params=PARAMS)
def plain(request, tiny_llama):
    """Per kind of sampling: its parameters, the tokens without drafts, and the hidden states of whole sequences."""
    params = PARAMS[request.param]
    with start(tiny_llama, {"grammar": Grammar}) as engine:
        tokens = [list(done.token_ids) for done in together(engine, PROMPTS, params)]
    hiddens = []
    with start(tiny_llama, {"tap": Tap}) as engine:
        tap = engine.parts.host.plugin("tap").instance
        for prompt, more in zip(PROMPTS, tokens, strict=True):
            tap.seen.clear()
            engine.generate([prompt + more], greedy(1))
            hiddens.append(tap.seen[0])
    return params, tokens, hiddens


def run(tiny_llama, plain, right, tree=False, serve=together, plugin=Seams, **engine):
    """Generate with drafts, of which `right` are right (None: the draft model's own), and check everything."""
    params, tokens, hiddens = plain
    options = {"seams": {"drafts": DRAFTS, "poison": True}}
    with start(tiny_llama, {"seams": plugin}, options, **engine) as running:
        seams = running.parts.host.plugin("seams").instance
        if right is not None:
            reference = {tuple(p): t for p, t in zip(PROMPTS, tokens, strict=True)}
            seams.script = Script(reference, right, DRAFTS, tree)
        done = serve(running, PROMPTS, params)
        assert [list(one.token_ids) for one in done] == tokens
        assert_idle(running)
    assert seams.draft_forwards > 0
    assert sorted(seams.released) == sorted(one.request_id for one in done)
    for kept, length, pools in seams.commits:
        assert_pools(kept, length, pools, tokens, hiddens)
    return seams


def assert_pools(kept, length, pools, tokens, hiddens):
    whole = [prompt + more for prompt, more in zip(PROMPTS, tokens, strict=True)]
    hidden = next(h for text, h in zip(whole, hiddens, strict=True) if tuple(text[:length]) == kept)
    for name, wanted in expected(hidden, length).items():
        where = f"{name} at {length}"
        torch.testing.assert_close(pools[name], wanted, atol=1e-4, rtol=1e-4, msg=partial("{}: {}".format, where))


CHAINS = [(right, False, "off") for right in (None, 0, 1, 2, 4)]
TREES = [(right, True, "off") for right in (0, 1, 2)]
TAPES = [(None, False, "tape"), (1, False, "tape"), (2, True, "tape")]


@pytest.mark.parametrize(("right", "tree", "capture"), [*CHAINS, *TREES, *TAPES])
def test_drafts_change_nothing_and_pools_hold_what_was_kept(tiny_llama, plain, right, tree, capture):
    run(tiny_llama, plain, right, tree, capture=capture)


@pytest.mark.parametrize(("chunk", "capture"), [(1, "off"), (3, "off"), (3, "tape")])
def test_prompt_chunks_beside_drafts(tiny_llama, plain, chunk, capture):
    run(tiny_llama, plain, 2, chunk=chunk, serve=one_per_step, capture=capture)


def test_more_right_drafts_mean_fewer_steps(tiny_llama, plain):
    steps = [len(run(tiny_llama, plain, right).commits) for right in (0, 1, 2, 4)]
    assert steps == sorted(steps, reverse=True)
    assert len(set(steps)) == 4


def test_every_kind_of_draft_forward_was_replayed(tiny_llama, plain):
    params = plain[0]
    with start(tiny_llama, {"seams": Seams}, {"seams": {"drafts": DRAFTS}}, capture="tape") as engine:
        together(engine, PROMPTS, params)
        keys = engine.parts.forwards._capture.keys
    assert {(key[0], key[2]) for key in keys} == {(0, 0), *((1, draft_step) for draft_step in range(DRAFTS))}


def test_a_pool_with_too_few_versions_stops_the_start(tiny_llama):
    class Few(Seams):
        @hookimpl
        def refine(self, specs):
            from dataclasses import replace

            from byref.contract.specs import PoolSpec, rewrite

            return rewrite(super().refine(specs), PoolSpec, lambda p: replace(p, versions=1))

    with pytest.raises(ByrefError, match=r"keeps 1 versions, and windows have up to 4 drafts"):
        start(tiny_llama, {"seams": Few}, {"seams": {"drafts": DRAFTS}})


class BlindGrammar(Seams):
    """The mutation: every row of a window is masked as if no draft stood before it."""

    @staticmethod
    def before(info):
        return info.request.tokens[-1]


def test_mutation_grammar_blind_to_drafts_turns_red(tiny_llama, plain):
    with pytest.raises(AssertionError):
        run(tiny_llama, plain, 4, plugin=BlindGrammar)


def test_mutation_commit_without_compaction_turns_red(tiny_llama, plain, monkeypatch):
    monkeypatch.setattr(SlotPool, "keep", lambda *args: None)
    with pytest.raises(AssertionError):
        run(tiny_llama, plain, 4, tree=True)


@pytest.mark.parametrize("mutation", ["row", "step"])
def test_mutation_noise_that_is_not_of_the_position_turns_red(tiny_llama, plain, monkeypatch, mutation):
    if plain[0].temperature == 0:
        pytest.skip("greedy takes no noise")
    real, calls = processing.stream, []

    def stream(seed, position):
        calls.append(position)
        return real(seed, len(calls) if mutation == "step" else 0)

    monkeypatch.setattr(processing, "stream", stream)
    with pytest.raises(AssertionError):
        run(tiny_llama, plain, 2)


def test_mutation_pool_that_ignores_the_stride_of_rejected_rows_turns_red(tiny_llama, plain, monkeypatch):
    """Siblings of a tree write the same entry: what the stage kept apart has to be put in its place."""
    real = SlotPool._moves
    monkeypatch.setattr(SlotPool, "_moves", lambda pool, *args: [] if pool.spec.stride > 1 else real(pool, *args))
    with pytest.raises(AssertionError):
        run(tiny_llama, plain, 4, tree=True)
