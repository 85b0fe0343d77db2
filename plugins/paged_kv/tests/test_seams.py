"""Every seam at once on pages: a draft role, pools of every kind, codecs, chains and trees; free pages hold NaN."""

from __future__ import annotations

import engines
import pytest
import torch
from engines import greedy, one_per_step, together
from paging import assert_idle, start
from seams import Grammar, Script, Seams, Tap, expected

from byref.contract import hookimpl
from byref.kv.pools import SlotPool

SHARED = [11, 7, 30, 2, 2, 90, 14, 5, 61]
PROMPTS = [[5, 9, 77, 3, 2, 8], [*SHARED, 2, 3, 40, 5, 6], [7, 7, 7], [*SHARED, 8, 1]]
TOKENS = 16
DRAFTS = 4


class PoisonedSeams(Seams):
    """Every slot of a page that nobody holds is NaN in every step."""

    @hookimpl
    def prepare_step(self, step):
        for pool in self.kv._pools.values():
            space = pool.placement
            if space.geometry.per_request or not pool.data.is_floating_point():
                continue
            held = [0, *(page for pages in space.held.values() for page in pages), *space.pages._cached]
            free = torch.ones(len(pool.data), dtype=torch.bool)
            free[space._stage_base :] = False
            for page in held:
                free[page * space.per_page : (page + 1) * space.per_page] = False
            pool.data[free] = float("nan")


@pytest.fixture(scope="module")
def plain(tiny_llama):
    """The tokens without drafts, and the hidden states of whole sequences."""
    with engines.start(tiny_llama, {"grammar": Grammar}) as engine:
        tokens = [list(done.token_ids) for done in together(engine, PROMPTS, greedy(TOKENS))]
    hiddens = []
    with engines.start(tiny_llama, {"tap": Tap}) as engine:
        tap = engine.parts.host.plugin("tap").instance
        for prompt, more in zip(PROMPTS, tokens, strict=True):
            tap.seen.clear()
            engine.generate([prompt + more], greedy(1))
            hiddens.append(tap.seen[0])
    return tokens, hiddens


def run(tiny_llama, plain, right, tree=False, serve=together, pools=True, rounds=1, **engine):
    tokens, hiddens = plain
    paged = {"page_size": engine.pop("page_size", 4), **engine.pop("paged", {})}
    options = {"seams": {"drafts": DRAFTS, "pools": pools}}
    with start(tiny_llama, {"seams": PoisonedSeams}, options, paged=paged, **engine) as running:
        seams = running.parts.host.plugin("seams").instance
        if right is not None:
            reference = {tuple(p): t for p, t in zip(PROMPTS, tokens, strict=True)}
            seams.script = Script(reference, right, DRAFTS, tree)
        for _ in range(rounds):
            done = serve(running, PROMPTS, greedy(TOKENS))
            assert [list(one.token_ids) for one in done] == tokens
            assert_idle(running)
        figures = running.parts.kv.figures()
    assert seams.draft_forwards > 0
    for kept, length, found in seams.commits:
        whole = [prompt + more for prompt, more in zip(PROMPTS, tokens, strict=True)]
        hidden = next(h for text, h in zip(whole, hiddens, strict=True) if tuple(text[:length]) == kept)
        for name, wanted in expected(hidden, length).items():
            torch.testing.assert_close(found[name], wanted, atol=1e-4, rtol=1e-4)
    return figures


CASES = [
    (*case, "off", page_size) for case in ((None, False), (1, False), (4, False), (2, True)) for page_size in (1, 4, 16)
]
CASES += [(1, False, "tape", 4), (2, True, "tape", 4)]


@pytest.mark.parametrize(("right", "tree", "capture", "page_size"), CASES)
def test_drafts_change_nothing_and_pools_hold_what_was_kept(tiny_llama, plain, right, tree, capture, page_size):
    run(tiny_llama, plain, right, tree, capture=capture, page_size=page_size)


@pytest.mark.parametrize("chunk", [1, 3])
def test_prompt_chunks_beside_drafts(tiny_llama, plain, chunk):
    run(tiny_llama, plain, 2, chunk=chunk, serve=one_per_step)


@pytest.mark.parametrize("pools", [False, True], ids=["plain", "every kind of pool"])
@pytest.mark.parametrize(("chunk", "tree"), [(3, False), (64, True)])
def test_prefix_hits_beside_drafts(tiny_llama, plain, chunk, tree, pools):
    """The second round finds the first one's prompts, in the draft role's pools too, and their states."""
    figures = run(tiny_llama, plain, 2, tree, pools=pools, rounds=2, chunk=chunk)
    assert figures["hit_tokens"] >= 8 + 4 + 12 + (0 if pools else 8)  # no state in common was kept


@pytest.mark.parametrize("swap", [{}, {"swap_memory": "1MiB"}], ids=["computed again", "swapped"])
@pytest.mark.parametrize("pools", [False, True], ids=["plain", "every kind of pool"])
def test_a_pool_that_preempts_beside_drafts(tiny_llama, plain, pools, swap):
    figures = run(tiny_llama, plain, 2, True, pools=pools, rounds=2, kv_tokens=56, paged=swap)
    assert figures["preemptions"] > 0
    assert not swap or figures["swapped_in"] > 0


def test_mutation_commit_without_compaction_turns_red(tiny_llama, plain, monkeypatch):
    monkeypatch.setattr(SlotPool, "keep", lambda *args: None)
    with pytest.raises(AssertionError):
        run(tiny_llama, plain, 4, tree=True)
