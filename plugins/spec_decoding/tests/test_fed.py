"""Drafters that are fed by the target's hidden states: EAGLE heads and MTP modules, against plain-torch oracles."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
from engines import assert_idle, one_per_step, start, together
from safetensors.torch import load_file, save_file
from train.eagle import AUX_LAYERS
from train.save import load_deepseek, load_eagle, load_llama
from train.target import hiddens
from train.unroll import drafts

from byref.contract import ModelError, SamplingParams

CHECKPOINTS = Path(__file__).parents[3] / "tests" / "data" / "checkpoints"
LLAMA, HEAD, DEEPSEEK = (CHECKPOINTS / name for name in ("bytes-llama", "bytes-llama-eagle3", "bytes-deepseek"))
PROMPTS = [
    prompt[: 40 + 9 * i]
    for i, prompt in enumerate(json.loads((CHECKPOINTS / "held_out.json").read_text())["prompts"][:6])
]
STEPS = 3
TARGETS = {"eagle": LLAMA, "mtp": DEEPSEEK}
KINDS = {
    "greedy": {},
    "cool": {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
    "hot": {"temperature": 1.3, "top_k": 50, "presence_penalty": 0.5},
}


def table(drafter: str, head: Path = HEAD, **more) -> dict:
    options = {"model": str(head)} if drafter == "eagle" else {}
    return {"drafter": drafter, "adaptive": False, "max_draft_tokens": STEPS, "options": options, **more}


def params(kind: str, tokens: int = 48) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, seed=4, ignore_eos=True, **KINDS[kind])


def run(drafter: str | None, kind: str, serve=together, kv: dict | None = None, target: Path | None = None, **more):
    """Completions of every prompt, and the plugin's figures."""
    engine = {name: more.pop(name) for name in ("chunk", "capture") if name in more}
    tables = {"enable": ["models", *(kv or {}), *(["spec_decoding"] if drafter else [])], **(kv or {})}
    if drafter:
        tables["spec_decoding"] = table(drafter, **more)
    with start(target or TARGETS[drafter or "eagle"], options=tables, **engine) as running:
        done = serve(running, PROMPTS, params(kind))
        assert_idle(running)
        return [one.token_ids for one in done], running.figures().get("spec_decoding")


@pytest.fixture(scope="module")
def plain():
    """The tokens without drafts, of a drafter's target and a kind of sampling."""
    return functools.cache(lambda drafter, kind: run(None, kind, target=TARGETS[drafter])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafter", TARGETS)
def test_tokens_equal_those_without_drafts(plain, drafter, kind):
    found, figures = run(drafter, kind)
    assert found == plain(drafter, kind)
    assert figures["mean_accepted"] > 0.5


@pytest.mark.parametrize("drafter", TARGETS)
@pytest.mark.parametrize(
    "more",
    [
        {"chunk": 7},
        {"kv": {"paged_kv": {"page_size": 4}}, "chunk": 16},
        {"kv": {"paged_kv": {"page_size": 16, "num_pages": 22}}},  # too few for all: some are preempted
    ],
    ids=str,
)
def test_and_so_in_company(plain, drafter, more):
    found, figures = run(drafter, "cool", one_per_step, **more)
    assert found == plain(drafter, "cool")
    assert figures["mean_accepted"] > 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [3, 8, 13])
def test_trees_equal_plain_decoding_and_accept_no_less_than_chains(plain, kind, most):
    chain = run("eagle", kind)[1]
    found, figures = run("eagle", kind, one_per_step, tree=True, max_draft_tokens=most)
    assert found == plain("eagle", kind)
    if most > 3:
        assert figures["mean_accepted"] >= 0.95 * chain["mean_accepted"]


@pytest.mark.parametrize("drafter", TARGETS)
def test_rejection_sampling_keeps_what_heads_draw(plain, drafter):
    """Also where some are preempted; a greedy request has nothing to do with it."""
    tight = {"paged_kv": {"page_size": 16, "num_pages": 22}}
    equal, rejection = (run(drafter, "hot", one_per_step, tight, accept=rule)[1] for rule in ("equal", "rejection"))
    assert rejection["mean_accepted"] > 0.9 * equal["mean_accepted"]
    assert run(drafter, "greedy", accept="rejection")[0] == plain(drafter, "greedy")


def proposals(drafter: str, monkeypatch) -> dict[tuple[int, int], tuple[int, ...]]:
    """By prompt and number of tokens known: what the engine drafts after them."""
    from byref_spec_decoding.fed import FedDrafter

    seen, propose = {}, FedDrafter.propose

    def noted(self, round):
        drafts = propose(self, round)
        for want in round.wants:
            if want.most == STEPS:
                at = PROMPTS.index(list(want.request.prompt))
                seen[at, len(want.request.tokens)] = drafts[want.request.id].tokens
        return drafts

    monkeypatch.setattr(FedDrafter, "propose", noted)
    return seen


def oracle(drafter: str):
    """(taps, head) of the plain-torch form: tokens [1, n] -> what is tapped."""
    if drafter == "mtp":
        target, module = load_deepseek(DEEPSEEK)
        return (lambda tokens: target(tokens)[0]), module
    target = load_llama(LLAMA)
    return (lambda tokens: hiddens(target, tokens, AUX_LAYERS)[0]), load_eagle(HEAD, target)


@pytest.mark.parametrize("drafter", TARGETS)
@torch.no_grad()
def test_drafts_are_those_of_the_plain_torch_head(plain, drafter, monkeypatch):
    """After every step: the caches hold what was verified and nothing else, whatever was accepted before."""
    seen = proposals(drafter, monkeypatch)
    run(drafter, "greedy", one_per_step, {"paged_kv": {}})
    taps, head = oracle(drafter)
    checked = 0
    for at, (prompt, more) in enumerate(zip(PROMPTS, plain(drafter, "greedy"), strict=True)):
        text = torch.tensor([[*prompt, *more]])
        expected = drafts(head, taps(text), text, STEPS)[0].tolist()
        for known in range(len(prompt) + 1, text.shape[1] - STEPS):
            if (at, known) in seen:
                assert seen[at, known] == tuple(expected[known - 2]), (at, known)
                checked += 1
    assert checked > 60


def test_a_head_accepts_more_than_prompt_lookup():
    lookup = run("ngram", "greedy", target=LLAMA)[1]
    for drafter in TARGETS:
        figures = run(drafter, "greedy")[1]
        assert figures["mean_accepted"] >= 1.5
        assert figures["accepted"] > lookup["accepted"]


@pytest.fixture
def broken(tmp_path):
    """A copy of the head whose tensors a test edits: `broken(edit)`."""

    def make(edit):
        folder = tmp_path / "head"
        shutil.copytree(HEAD, folder)
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t.pop("d2t"), "'d2t'"),
        (lambda t: t.pop("t2d"), "'t2d'"),
        (lambda t: t["d2t"].add_(1), "d2t and t2d"),
        (lambda t: t["t2d"].logical_not_(), "d2t and t2d"),
        (lambda t: t.pop("fc.weight"), "fc.weight"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:, 1:].contiguous()}), "fc.weight"),
    ],
)
def test_a_head_with_a_wrong_part_is_refused(broken, edit, said):
    folder = broken(edit)
    with pytest.raises(ModelError, match=said):
        run("eagle", "greedy", head=folder)


def test_a_head_whose_drafts_never_stay_is_dropped(broken, plain):
    """It would run for every token otherwise; the tokens stay what they are."""
    folder = broken(lambda t: t["lm_head.weight"].neg_())
    with start(
        LLAMA,
        options={"enable": ["models", "spec_decoding"], "spec_decoding": table("eagle", folder) | {"adaptive": True}},
    ) as engine:
        speculator = engine.parts.speculator
        done = engine.generate([PROMPTS[0]], params("greedy", 120))[0]
        assert done.token_ids[:48] == plain("eagle", "greedy")[0]
        assert done.drafts.windows < 60  # of 119 that there would be
        assert not speculator._dropped  # nothing is kept of a request that has ended
