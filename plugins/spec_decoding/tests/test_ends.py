"""What ends a request in the middle of an accepted run cuts everything there, and what was drafted is counted exactly."""

from __future__ import annotations

import doubles
import pytest
from checkpoints import END
from doubles import Watch, assert_idle_with, start_with
from scripts import Forced

from byref.contract import SamplingParams
from byref.contract.requests import Reason

PROMPT = (10, 20, 30)
MOST = 4
LONG = range(40, 70)


@pytest.fixture(scope="module", params=["contiguous", "pages"])
def engine(request, one_layer):
    tables = {"paged_kv": {"page_size": 4, "prefix_cache": False}} if request.param == "pages" else {}
    plugins = {"forced": Forced, "watch": Watch}
    with start_with(one_layer, "scripted", {"max_draft_tokens": MOST}, plugins, tables) as running:
        yield running


def run(engine, script, right: int = 99, **params):
    """The completion of a request whose tokens are scripted, and its chunks; all that is told of it agrees."""
    doubles.plugin(engine, "forced").script = {PROMPT: script}
    double, watch = doubles.drafter(engine), doubles.plugin(engine, "watch")
    double.reference, double.right = {PROMPT: script}, right
    watch.reports.clear()
    before = engine.figures()["spec_decoding"]
    params = SamplingParams(**({"max_tokens": 30, "logprobs": 1} | params))
    chunks = list(engine.stream(PROMPT, params))
    done = chunks[-1].completion
    assert "".join(chunk.text for chunk in chunks) == done.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == done.token_ids
    assert [scores for chunk in chunks for scores in chunk.logprobs] == list(done.logprobs)
    assert len(done.logprobs) == len(done.token_ids)
    assert_figures(engine, done, chunks, before)
    assert_idle_with(engine)
    return done, chunks


def assert_figures(engine, done, chunks, before):
    """A request's figures, its chunks', the reports' and the plugin's are the same counts."""
    drafts, reports = done.drafts, doubles.plugin(engine, "watch").reports
    assert sum(chunk.drafted for chunk in chunks) == drafts.accepted == sum(report.drafts_kept for report in reports)
    assert drafts.drafted == sum(report.drafted for report in reports)
    assert drafts.windows == sum(report.drafted > 0 for report in reports)
    assert sum(report.accepted for report in reports) == len(done.token_ids)
    assert sum(drafts.accepted_at) == drafts.accepted
    assert drafts.accepted_at == sorted(drafts.accepted_at, reverse=True)
    assert drafts.mean_accepted == (drafts.accepted / drafts.windows if drafts.windows else 0)
    assert all(report.draft_seconds >= 0 for report in reports)
    assert drafts.seconds == pytest.approx(sum(report.draft_seconds for report in reports[:-1]))
    after = engine.figures()["spec_decoding"]
    for name, count in (("windows", drafts.windows), ("drafted", drafts.drafted), ("accepted", drafts.accepted)):
        assert after[name] - before[name] == count
    assert after["mean_accepted"] == after["accepted"] / max(after["windows"], 1)
    assert after["seconds"] >= before["seconds"]
    was, windows = before["windows"], after["windows"]
    for i, count in enumerate(drafts.accepted_at, start=1):
        found = after[f"accepted_at_{i}"] * windows - before.get(f"accepted_at_{i}", 0) * was
        assert found == pytest.approx(count)


def cut_runs(after_first: int) -> list[int]:
    """Drafts kept per window, where the first token is followed by so many."""
    whole, rest = divmod(after_first, MOST + 1)
    return [MOST] * whole + ([rest] if rest else [])


@pytest.mark.parametrize("at", range(MOST + 3))
def test_an_end_token_or_a_stop_token_within_an_accepted_run(engine, at):
    """Fault S01."""
    text = [*LONG[:at]]
    for token, more in ((END, {}), (33, {"stop_token_ids": (33, 34), "ignore_eos": True})):
        done, chunks = run(engine, [*text, token, *LONG[at:]], **more)
        assert done.token_ids == (*text, token)
        assert done.text == engine.tokenizer.decode(text)
        assert done.finished is chunks[-1].finished is Reason.STOP
        # The first token has no draft; windows of MOST drafts and one token more follow. The cut one counts its drafts.
        assert [chunk.drafted for chunk in chunks] == [0, *cut_runs(at)]


@pytest.mark.parametrize("at", range(MOST + 3))
def test_a_stop_string_within_an_accepted_run(engine, at):
    lead = "qwxyzvjkf"[:at]
    script = engine.tokenizer.encode(lead + "STOP" + "never shown at all")
    done, _ = run(engine, script, stop=("unseen", "STOP"))
    assert done.text == lead
    assert done.token_ids == tuple(engine.tokenizer.encode(lead + "STOP"))
    assert done.finished is Reason.STOP


@pytest.mark.parametrize("least", range(1, MOST + 4))
def test_no_end_before_the_least_tokens(engine, least):
    """What is forced is masked where it would end too soon: another token comes, and is no draft."""
    done, _ = run(engine, [*LONG[:least], END, 7], min_tokens=least, max_tokens=20)
    assert done.token_ids == (*LONG[:least], END)
    text = engine.tokenizer.encode("aXbXcXdXeXfXgX")
    done, _ = run(engine, text, min_tokens=least, stop=("X",))
    assert done.token_ids == tuple(text[: least + 2 - least % 2])


@pytest.mark.parametrize("most", range(1, 2 * MOST))
def test_the_most_tokens_are_never_passed(engine, most):
    done, _ = run(engine, list(LONG), max_tokens=most)
    assert done.token_ids == tuple(LONG[:most])
    assert done.finished is Reason.LENGTH


@pytest.mark.parametrize("context", range(5, 5 + MOST + 2))
def test_the_context_is_never_passed(one_layer, context):
    plugins, table = {"forced": Forced, "watch": Watch}, {"max_draft_tokens": MOST}
    with start_with(one_layer, "scripted", table, plugins, max_context=context) as engine:
        done, _ = run(engine, list(LONG))
    assert done.token_ids == tuple(LONG[: context - len(PROMPT)])
    assert done.finished is Reason.LENGTH


@pytest.mark.parametrize("right", range(MOST + 1))
def test_figures_by_position(engine, right):
    """21 tokens: one without drafts, then windows of MOST drafts, narrower at the end."""
    done, chunks = run(engine, list(LONG), right, max_tokens=21)
    widths, kept, generated = [], [], 1
    while generated < 21:
        widths.append(min(MOST, 21 - generated - 1))
        kept.append(min(widths[-1], right))
        generated += kept[-1] + 1
    assert [chunk.drafted for chunk in chunks] == [0, *kept]
    assert (done.drafts.windows, done.drafts.drafted) == (sum(width > 0 for width in widths), sum(widths))
    assert done.drafts.accepted_at == [sum(k > i for k in kept) for i in range(right)]
