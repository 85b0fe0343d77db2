"""What is broken on purpose, core or plugin, turns the checks of equality red."""

from __future__ import annotations

import doubles
import pytest
from doubles import compare
from engines import together

from byref.contract import SamplingParams
from byref.contract.step import Verdict
from byref.engine import live, processing, runner
from byref.engine.noise import stream
from byref.engine.speculator import PlainSpeculator
from byref_spec_decoding import rollout, speculator

PROMPTS = [[5, 9, 77, 3, 2, 8], [100, 2, 3, 40, 5, 6, 70], [7, 7, 7]]
SAMPLED = SamplingParams(max_tokens=16, temperature=1.0, seed=3, ignore_eos=True)
COUNTED = SamplingParams(
    max_tokens=16, ignore_eos=True, allowed_token_ids=range(60, 66), frequency_penalty=1.5, presence_penalty=1.0
)
TABLE = {"max_draft_tokens": 4, "options": {"right": 3}}


def served(path, params=SAMPLED, drafter="scripted", table=TABLE, **more):
    return compare(path, drafter, PROMPTS, params, table, **more)


def test_nothing_is_broken(short_llama):
    for params in (SAMPLED, COUNTED):
        served(short_llama, params)


@pytest.mark.parametrize("by", ["row", "step", "draft"])
def test_noise_of_anything_but_seed_and_position(short_llama, monkeypatch, by):
    real, calls = processing.sample, {"row": 0, "step": 0}
    forward, choose = runner.Runner.step, processing.choose

    def step(self):
        calls["step"] += 1
        return forward(self)

    def chosen(rows, *args, **more):
        calls["infos"], calls["row"] = [one for one in rows.infos if not one.is_prompt], 0
        return choose(rows, *args, **more)

    def sample(logits, params, seed, position):
        info = calls["infos"][calls["row"]]
        calls["row"] += 1
        number = {"row": calls["row"], "step": calls["step"], "draft": len(info.drafts)}[by]
        return real(logits, params, seed, number)

    monkeypatch.setattr(runner.Runner, "step", step)
    monkeypatch.setattr(processing, "choose", chosen)
    monkeypatch.setattr(processing, "sample", sample)
    with pytest.raises(AssertionError):
        served(short_llama)


@pytest.mark.parametrize("params", [SAMPLED.model_copy(update={"banned_token_ids": tuple(range(150))}), COUNTED])
def test_processors_skipped_beyond_the_first_row(short_llama, monkeypatch, params):
    real = runner.process

    def process(logits, infos, vocabulary, asked, adjust):
        return real(logits, infos, vocabulary, {i: p for i, p in asked.items() if not infos[i].drafts}, adjust)

    monkeypatch.setattr(runner, "process", process)
    with pytest.raises(AssertionError):
        served(short_llama, params)


def test_length_checked_before_stop(short_llama, monkeypatch):
    """Where the last token allowed is one that ends the turn, or ends a stop string."""
    expected = doubles.plain(short_llama, PROMPTS, SAMPLED)
    ends = [SAMPLED.model_copy(update={"max_tokens": 8, "stop_token_ids": (done.token_ids[7],)}) for done in expected]
    plain = doubles.plain(short_llama, PROMPTS, ends)
    real = live.Live.accept

    def accept(self, tokens, limit):
        room = min(self.request.params.max_tokens - self.request.generated, limit - len(self.request.tokens))
        ids, self.end_ids = self.end_ids, frozenset() if len(tokens) >= room else self.end_ids
        try:
            return real(self, tokens, limit)
        finally:
            self.end_ids = ids

    with doubles.start_with(short_llama, "scripted", TABLE) as engine:
        doubles.drafter(engine).reference = {done.prompt_ids: done.token_ids for done in expected}
        doubles.assert_same(together(engine, PROMPTS, ends), plain)
        monkeypatch.setattr(live.Live, "accept", accept)
        with pytest.raises(AssertionError):
            doubles.assert_same(together(engine, PROMPTS, ends), plain)


def test_nothing_cut_at_the_end_of_a_request(short_llama, monkeypatch):
    """A run of accepted drafts is kept whole."""
    real = live.Live.accept

    def accept(self, tokens, limit):
        ids, self.end_ids = self.end_ids, frozenset()
        try:
            kept, text, reason = real(self, tokens, limit)
        finally:
            self.end_ids = ids
        return kept, text, reason or (live.Reason.STOP if ids & set(tokens) else None)

    expected = doubles.plain(short_llama, PROMPTS, SAMPLED)
    params = [SAMPLED.model_copy(update={"stop_token_ids": (done.token_ids[6],)}) for done in expected]
    served(short_llama, params)
    monkeypatch.setattr(live.Live, "accept", accept)
    with pytest.raises(AssertionError):
        served(short_llama, params)


def test_one_draft_too_many_accepted(short_llama, monkeypatch):
    real = PlainSpeculator.verify

    def verify(self, rows, chosen):
        windows = {info.request.id: info.window for info in rows.infos}
        return {id: lenient(windows[id], verdict) for id, verdict in real(self, rows, chosen).items()}

    def lenient(window, verdict):
        row = len(verdict.path)
        if row >= len(window.tokens) or row < window.known:
            return verdict
        return Verdict((*verdict.path, row), (*verdict.tokens[:-1], window.tokens[row], verdict.tokens[-1]))

    monkeypatch.setattr(PlainSpeculator, "verify", verify)
    with pytest.raises(AssertionError):
        served(short_llama)


def test_a_draft_of_an_earlier_step(short_llama, monkeypatch):
    """It is another draft than the one it seems: output is right all the same, and next to nothing is accepted."""
    monkeypatch.setattr(
        speculator.SpecSpeculator, "draft", lambda self, request: self._drafts.get(request.id, (0, speculator.NONE))[1]
    )
    served(short_llama)


def test_a_draft_cache_that_keeps_what_was_rejected(one_layer, monkeypatch):
    """Output is right all the same, and acceptance decays: the target as its own draft is no longer always right."""
    table = {"max_draft_tokens": 4, "options": {"model": str(one_layer)}}
    params = SAMPLED.model_copy(update={"max_tokens": 40, "top_k": 40})
    _, good = served(one_layer, params, "draft_model", table)
    real = rollout.catch_up

    def catch_up(request, sizing):
        request.lengths["draft"] = max(request.lengths.get("draft", 0), len(request.tokens) - 2)
        return real(request, sizing)

    monkeypatch.setattr(rollout, "catch_up", catch_up)
    _, bad = served(one_layer, params, "draft_model", table)
    assert good["accepted"] == good["drafted"]
    assert bad["accepted"] < 0.9 * bad["drafted"]


def test_drafts_drawn_with_noise_of_their_own(one_layer, monkeypatch):
    """The target as its own draft then agrees only as often as chance lets two draws agree."""
    table = {"max_draft_tokens": 4, "options": {"model": str(one_layer)}}
    monkeypatch.setattr(rollout, "stream", lambda seed, position: stream(seed + 1, position))
    _, figures = served(one_layer, SAMPLED.model_copy(update={"top_k": 40}), "draft_model", table)
    assert figures["accepted"] < 0.7 * figures["drafted"]
