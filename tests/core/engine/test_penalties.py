"""Each processor against transformers' own on the same rows, in the order of the design, for prefixes with drafts too."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rows import info
from transformers.generation import logits_process as reference

from byref.contract import SamplingParams
from byref.engine.processing import process
from byref.engine.processors import Processor, processors

VOCABULARY = 60

token = st.integers(0, VOCABULARY - 1)
prefixes = st.fixed_dictionaries(
    {
        "prompt": st.lists(token, min_size=1, max_size=6),
        "generated": st.lists(token, max_size=8),
        "drafts": st.lists(token, max_size=4),
    }
)
rows = st.integers(0, 2**31).map(
    lambda seed: torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 4
)


def processed(row: torch.Tensor, params: SamplingParams, prefix: dict, ends: tuple[int, ...] = ()) -> torch.Tensor:
    """The row as core's processors leave it."""
    edited = row.clone()
    for processor in processors(params, ends):
        processor(edited, info(params, **prefix))
    return edited


def theirs(row: torch.Tensor, prefix: dict, *processors: reference.LogitsProcessor) -> torch.Tensor:
    """The row as transformers' processors leave it."""
    ids, scores = torch.tensor([prefix["prompt"] + prefix["generated"] + prefix["drafts"]]), row.clone()[None]
    for processor in processors:
        scores = processor(ids, scores)
    return scores[0]


def assert_same(mine: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-6)


@given(rows, prefixes, st.sampled_from([0.5, 1.1, 2.0]))
def test_repetition_penalty(row, prefix, penalty):
    mine = processed(row, SamplingParams(repetition_penalty=penalty), prefix)
    assert_same(mine, theirs(row, prefix, reference.RepetitionPenaltyLogitsProcessor(penalty)))


@given(rows, prefixes, st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency_penalties(row, prefix, presence, frequency):
    """transformers has none: OpenAI's formula, mu[j] -= c[j] * frequency + (c[j] > 0) * presence, token by token."""
    said = prefix["generated"] + prefix["drafts"]
    expected = [
        value - said.count(j) * frequency - (said.count(j) > 0) * presence for j, value in enumerate(row.tolist())
    ]
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    assert processed(row, params, prefix).tolist() == pytest.approx(expected, abs=1e-5)


@given(rows, prefixes, st.dictionaries(token, st.floats(-100, 100), min_size=1, max_size=5))
def test_logit_bias(row, prefix, bias):
    sequences = {(one,): value for one, value in bias.items() if value}
    expected = theirs(row, prefix, reference.SequenceBiasLogitsProcessor(sequences)) if sequences else row
    assert_same(processed(row, SamplingParams(logit_bias=bias), prefix), expected)


@given(rows, prefixes, st.sets(token, min_size=1, max_size=5))
def test_banned_tokens(row, prefix, banned):
    expected = theirs(row, prefix, reference.SuppressTokensLogitsProcessor(sorted(banned)))
    assert_same(processed(row, SamplingParams(banned_token_ids=tuple(banned)), prefix), expected)


@given(rows, prefixes, st.sets(token, min_size=1, max_size=5))
def test_allowed_tokens(row, prefix, allowed):
    expected = theirs(row, prefix, reference.PrefixConstrainedLogitsProcessor(lambda *_: sorted(allowed), 1))
    assert_same(processed(row, SamplingParams(allowed_token_ids=tuple(allowed)), prefix), expected)


@given(rows, prefixes, st.integers(1, 9))
def test_min_tokens(row, prefix, least):
    ends = (3, 17)
    expected = theirs(
        row, prefix, reference.MinNewTokensLengthLogitsProcessor(len(prefix["prompt"]), least, list(ends))
    )
    assert_same(processed(row, SamplingParams(min_tokens=least), prefix, ends), expected)


@given(rows, prefixes)
def test_all_together_in_order(row, prefix):
    params = SamplingParams(repetition_penalty=1.4, logit_bias={5: 3.0, 6: -2.0}, banned_token_ids=[5], min_tokens=4)
    expected = theirs(
        row,
        prefix,
        reference.RepetitionPenaltyLogitsProcessor(1.4),
        reference.SequenceBiasLogitsProcessor({(5,): 3.0, (6,): -2.0}),
        reference.SuppressTokensLogitsProcessor([5]),
        reference.MinNewTokensLengthLogitsProcessor(len(prefix["prompt"]), 4, [9]),
    )
    assert_same(processed(row, params, prefix, (9,)), expected)


@given(rows, st.lists(token, min_size=1, max_size=12), st.data())
def test_what_was_counted_before_changes_nothing(row, generated, data):
    """A processor lives as long as its request: rows of one prefix give the same whatever rows came before."""
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.7)
    used = processors(params, ())
    for _ in range(4):
        n = data.draw(st.integers(0, len(generated)))
        drafts = data.draw(st.lists(token, max_size=3))
        at = info(params, generated=generated[:n], drafts=drafts)
        fresh, again = row.clone(), row.clone()
        apply(processors(params, ()), fresh, at)
        apply(used, again, at)
        assert torch.equal(fresh, again)


def apply(found: tuple[Processor, ...], row: torch.Tensor, at) -> None:
    for processor in found:
        processor(row, at)


def test_nothing_asked_for_is_nothing_done():
    assert processors(SamplingParams(temperature=1.0, top_k=3, min_p=0.1, stop=["x"]), (1, 2)) == ()
    logits = torch.randn(3, VOCABULARY).bfloat16()
    rows, _ = process(logits, tuple(info(SamplingParams()) for _ in range(3)), VOCABULARY, {}, None)
    assert rows.logits.data_ptr() == logits.data_ptr()
    assert rows.logits.dtype is torch.bfloat16


def test_plugins_come_after_processors_and_before_temperature():
    seen = []

    def adjust(rows):
        seen.append(rows.logits.clone())
        rows.logits[:, 4] = math.inf

    logits = torch.zeros(1, VOCABULARY).bfloat16()
    params = SamplingParams(temperature=0.5, seed=1, logit_bias={3: 2.0})
    _, chosen = process(logits, (info(params),), VOCABULARY, {0: processors(params, ())}, adjust)
    assert chosen == [4]
    assert seen[0].dtype is torch.float32
    assert seen[0][0, 3] == 2
    assert seen[0].sum() == 2
