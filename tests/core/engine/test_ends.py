"""What ends a request cuts everything there: ids, text, log-probabilities and memory, in the middle of accepted drafts too."""

from __future__ import annotations

import pytest
from checkpoints import END
from drafts import Told
from engines import assert_idle, start
from scripts import Forced, Noted, noted

from byref.contract import SamplingParams
from byref.contract.requests import Reason

PROMPT = (10, 20, 30)


@pytest.fixture(scope="module", params=[0, 1, 3, 5], ids=lambda most: f"{most} drafts")
def engine(request, short_llama):
    plugins = {"forced": Forced, "noted": Noted} | ({"told": Told} if request.param else {})
    options = {"told": {"most": request.param, "right": 1.0}} if request.param else {}
    with start(short_llama, plugins, options) as engine:
        yield engine


def run(engine, script, **params):
    """The completion of a request whose tokens are scripted, and its streamed chunks."""
    host = engine.parts.host
    host.plugin("forced").instance.script = {PROMPT: script}
    if any(plugin.name == "told" for plugin in host.plugins):
        host.plugin("told").instance.reference = {PROMPT: script}
    kept = []
    noted(engine).raises["commit"] = lambda step: kept.extend(committed(step))
    chunks = list(engine.stream(PROMPT, SamplingParams(logprobs=0, **({"max_tokens": 60} | params))))
    completion = chunks[-1].completion
    assert tuple(kept) == completion.token_ids
    assert "".join(chunk.text for chunk in chunks) == completion.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == completion.token_ids
    assert [next(iter(scores)) for scores in completion.logprobs] == list(completion.token_ids)
    assert_idle(engine)
    return completion, chunks


def committed(step):
    """Tokens of the outcome, which is cut already; the memory kept fits them."""
    for window in step.plan.windows:
        request, verdict = step.requests[window.request], step.outcome[window.request]
        assert request.computed == window.start + len(verdict.path) == len(request.tokens) - 1
        yield from verdict.tokens


def ids(engine, text):
    return engine.tokenizer.encode(text)


def test_drafts_are_accepted_in_runs(engine):
    _, chunks = run(engine, ids(engine, "some text that goes on and on"), max_tokens=12)
    most = engine.parts.sizing.max_drafts
    assert max(len(chunk.token_ids) for chunk in chunks) == most + 1


@pytest.mark.parametrize("at", range(9))
def test_an_end_token_ends_it(engine, at):
    before = [7] * at
    completion, _ = run(engine, [*before, END, *ids(engine, "never shown")])
    assert completion.token_ids == (*before, END)
    assert completion.text == engine.tokenizer.decode(before)
    assert completion.finished is Reason.STOP


@pytest.mark.parametrize("at", range(9))
def test_a_stop_token_ends_it(engine, at):
    before = [7] * at
    completion, _ = run(engine, [*before, 33, 7, 7], stop_token_ids=(33, 34), ignore_eos=True)
    assert completion.token_ids == (*before, 33)
    assert completion.finished is Reason.STOP


def test_an_ignored_end_token_does_not(engine):
    completion, _ = run(engine, [7, END, 8, END, 9], max_tokens=5, ignore_eos=True)
    assert completion.token_ids == (7, END, 8, END, 9)
    assert completion.finished is Reason.LENGTH


@pytest.mark.parametrize("most", range(1, 9))
def test_max_tokens_is_never_passed(engine, most):
    completion, _ = run(engine, list(range(40, 60)), max_tokens=most)
    assert completion.token_ids == tuple(range(40, 40 + most))
    assert completion.finished is Reason.LENGTH


@pytest.mark.parametrize("context", [5, 8, 11])
def test_the_context_is_never_passed(short_llama, context):
    plugins, options = {"forced": Forced, "noted": Noted, "told": Told}, {"told": {"most": 5, "right": 1.0}}
    with start(short_llama, plugins, options, max_context=context) as engine:
        completion, _ = run(engine, list(range(40, 60)))
        assert completion.token_ids == tuple(range(40, 40 + context - len(PROMPT)))
        assert completion.finished is Reason.LENGTH


@pytest.mark.parametrize("lead", ["", "a", "ab", "abcdefgh"])
@pytest.mark.parametrize("stop", ["STOP", "\n\n", "é!", "S"])
def test_a_stop_string_straddles_tokens_and_no_part_leaks(engine, lead, stop):
    completion, chunks = run(engine, ids(engine, lead + stop + "never shown"), stop=(stop, "unseen"))
    assert completion.text == lead
    assert completion.finished is Reason.STOP
    assert completion.token_ids == tuple(ids(engine, lead + stop))
    shown = ""
    for chunk in chunks:
        shown += chunk.text
        assert lead.startswith(shown)


def test_what_only_begins_like_a_stop_string_is_not_lost(engine):
    text = "STO, not STOx, but STO"
    completion, _ = run(engine, [*ids(engine, text), END], stop=("STOP",))
    assert completion.text == text


def test_a_stop_string_within_the_last_token_allowed(engine):
    completion, _ = run(engine, ids(engine, "abSTOP"), stop=("STOP",), max_tokens=len(ids(engine, "abSTOP")))
    assert completion.text == "ab"
    assert completion.finished is Reason.STOP


@pytest.mark.parametrize("text", ["naïve café", "日本語テスト", "👩‍👩‍👧 ok", "é" * 9])
def test_a_character_split_over_tokens_is_shown_whole(engine, text):
    completion, chunks = run(engine, [*ids(engine, text), END])
    assert completion.text == text
    assert all("\ufffd" not in chunk.text for chunk in chunks)


def test_half_a_character_at_the_end_is_shown_as_the_tokenizer_decodes_it(engine):
    half = ids(engine, "ab é")[:-1]
    completion, chunks = run(engine, half, max_tokens=len(half))
    assert completion.text == engine.tokenizer.decode(half)
    assert all("\ufffd" not in chunk.text for chunk in chunks[:-1])
