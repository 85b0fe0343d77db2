"""The plain sampler: its distribution, its noise, truncation against transformers, and rows that know no neighbour."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rows import info, rows_of
from transformers.generation import logits_process as reference

from byref.contract import SamplingParams
from byref.engine import noise
from byref.engine.processing import NO_TOKEN, choose, process, sample, scale, survivors, token_logprobs

DRAWS = 2500
VOCABULARY = 320

finite = st.floats(-20, 20, width=32)


def chi_squared(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """In standard deviations above what chance gives; cells of less than 5 expected draws are one."""
    small = expected < 5
    cells = [(c, e) for c, e in zip(counts[~small].tolist(), expected[~small].tolist(), strict=True)]
    if float(expected[small].sum()) > 5:
        cells.append((float(counts[small].sum()), float(expected[small].sum())))
    statistic = sum((c - e) ** 2 / e for c, e in cells)
    freedom = len(cells) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def draw(logits: torch.Tensor, params: SamplingParams, seed: int | None = 7) -> torch.Tensor:
    """Counts of DRAWS choices: of one seed at many positions, or (None) of many seeds at one position."""
    pairs = [(seed, i) for i in range(DRAWS)] if seed is not None else [(i, 5) for i in range(DRAWS)]
    return torch.bincount(
        torch.tensor([sample(logits, params, *pair) for pair in pairs]), minlength=len(logits)
    ).double()


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """What transformers leaves of logits [vocabulary]."""
    scores, ids = logits.float()[None], torch.zeros(1, 1, dtype=torch.int64)
    scores = reference.TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k:
        scores = reference.TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = reference.TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p > 0:
        scores = reference.MinPLogitsWarper(params.min_p)(ids, scores)
    return scores[0]


WAYS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 12},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.3, "min_p": 0.1},
    {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize(("way", "seed"), [*((way, 7) for way in WAYS), (WAYS[0], None)], ids=str)
def test_tokens_come_as_often_as_transformers_distribution_says(way, seed):
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    params = SamplingParams(**way)
    expected = warped(logits, params).double().softmax(-1) * DRAWS
    counts = draw(logits, params, seed)
    assert not counts[expected == 0].any()
    assert abs(chi_squared(counts, expected)) < 4


def test_the_check_of_distributions_can_fail():
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    expected = logits.double().softmax(-1) * DRAWS
    assert chi_squared(draw(logits, SamplingParams(temperature=0.8)), expected) > 10


@given(
    seed=st.integers(0, 2**31),
    way=st.sampled_from(WAYS[2:]),
    size=st.sampled_from([5, 40, 3000]),
    spread=st.sampled_from([0.3, 2.0, 6.0]),
)
def test_truncation_leaves_the_tokens_that_transformers_leaves(seed, way, size, spread):
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread
    params = SamplingParams(**way)
    theirs = warped(logits, params).isfinite().nonzero().squeeze(1).tolist()
    mine = survivors(scale(logits, params.temperature), params)[0].tolist()
    # Sums of probabilities are rounded otherwise: the two may differ in the token at the edge of top-p.
    differ = set(mine) ^ set(theirs)
    assert len(differ) <= 1
    if differ:
        assert params.top_p < 1
        assert at_the_edge(logits, params, differ.pop())


def at_the_edge(logits: torch.Tensor, params: SamplingParams, token: int) -> bool:
    before = warped(logits, params.model_copy(update={"top_p": 1.0, "min_p": 0.0})).double().softmax(-1)
    above = float(before[before > before[token]].sum())
    return abs(above - params.top_p) < 1e-5 or abs(above + float(before[token]) - params.top_p) < 1e-5


def test_ties_at_a_boundary_all_stay():
    scaled = scale(torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0]), 1.0)
    assert survivors(scaled, SamplingParams(temperature=1.0, top_k=2))[0].tolist() == [1, 2, 3]
    assert survivors(scaled, SamplingParams(temperature=1.0, top_p=0.1))[0].tolist() == [1, 2, 3]


def test_top_p_of_many_equal_values():
    """More than are sorted at once: a plateau below a few likelier tokens, and one below it."""
    scaled = scale(torch.cat([torch.full((2000,), -12.0), torch.full((3000,), -1.0), torch.zeros(5)]), 1.0)
    for top_p, kept in ((1e-6, 5), (0.004, 5), (0.005, 3005), (0.9, 3005), (0.99998, 3005), (0.999995, 5005)):
        assert len(survivors(scaled, SamplingParams(temperature=1.0, top_p=top_p))[0]) == kept, top_p


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = torch.tensor([1.0, -5.0, 3.0, 2.9])
    params = SamplingParams(temperature=temperature)
    assert {sample(logits, params, 1, position) for position in range(50)} == {2}


@pytest.mark.parametrize("way", [{}, *WAYS], ids=str)
def test_a_row_without_a_token_has_none(way):
    for row in (torch.full((9,), -math.inf), torch.full((9,), math.nan)):
        assert choose(rows_of([row], [SamplingParams(**way)])) == [NO_TOKEN]


@pytest.mark.parametrize("way", [{}, *WAYS], ids=str)
def test_masked_tokens_are_never_chosen(way):
    row = torch.full((50,), -math.inf)
    row[[3, 30]] = torch.tensor([-40.0, -41.0])
    found = {choose(rows_of([row], [SamplingParams(seed=seed, **way)]))[0] for seed in range(40)}
    assert found <= {3, 30}


parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 1, 10]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.integers(-5, 5),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), finite, max_size=3),
)


@given(
    st.lists(parameters, min_size=2, max_size=6),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.booleans(),
)
def test_a_row_knows_no_neighbour(params, seed, dtype, adjusted):
    """Alone, in any company and in any order a row yields the same token, whether a plugin looks at the rows or not."""
    draws = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(params), VOCABULARY + 7, generator=draws) * 3).to(dtype)
    infos = [
        info(one, seed=one.seed, generated=torch.randint(VOCABULARY, (5,), generator=draws).tolist()) for one in params
    ]
    together = run(logits, infos, adjusted)
    assert run(logits.flip(0), infos[::-1], False) == together[::-1]
    assert [run(row[None], [one], False)[0] for row, one in zip(logits, infos, strict=True)] == together


def run(logits: torch.Tensor, infos: list, adjusted: bool) -> list[int]:
    from byref.engine.processors import processors

    asked = {i: found for i, one in enumerate(infos) if (found := processors(one.request.params, ()))}
    before = logits.clone()
    _, chosen = process(logits, tuple(infos), VOCABULARY, asked, (lambda _: None) if adjusted else None)
    assert torch.equal(logits, before)
    return chosen


def test_padding_rows_of_the_vocabulary_are_never_chosen_nor_counted():
    logits = torch.zeros(1, 20)
    logits[0, 10:] = 50.0
    for params in (SamplingParams(), SamplingParams(temperature=1.0, seed=1), SamplingParams(logit_bias={2: 1})):
        assert run_cut(logits, params) < 10
    assert sum(math.exp(p) for p in token_logprobs(logits[0, :10], 3, 10).values()) == pytest.approx(1.0)


def run_cut(logits: torch.Tensor, params: SamplingParams) -> int:
    from byref.engine.processors import processors

    return process(logits, (info(params),), 10, {0: processors(params, ())}, None)[1][0]


@pytest.mark.parametrize("top", [0, 1, 5, 100])
def test_log_probabilities_are_the_models_own_and_ordered(top):
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    expected = logits.log_softmax(-1)
    token = int(expected.argsort()[7])
    found = token_logprobs(logits, token, top)
    assert next(iter(found)) == token
    rest = [i for i in found if i != token]
    likeliest = expected.argsort(descending=True)[: min(top, 50)].tolist()
    assert rest == [i for i in likeliest if i != token]
    assert list(found.values()) == pytest.approx([float(expected[i]) for i in found])


def test_noise_is_gumbel_and_the_same_by_numpy_and_torch():
    states = [noise.stream(seed, 3) for seed in range(20)]
    tokens = torch.arange(4000)
    bits = torch.from_numpy(noise._bits_numpy(states, tokens.numpy()))
    assert torch.equal(bits, noise._bits_torch(states, tokens))
    found = noise.gumbel(states, tokens)
    torch.testing.assert_close(found, noise._gumbel(torch, noise._bits_torch(states, tokens)), atol=2e-6, rtol=1e-6)
    ordered = found.flatten().double().sort().values
    cdf = (-(-ordered).exp()).exp()
    ranks = (torch.arange(len(cdf)) + 0.5) / len(cdf)
    assert float((cdf - ranks).abs().max()) < 1.63 / math.sqrt(len(cdf))  # Kolmogorov-Smirnov at 1 %
    assert abs(float(np.corrcoef(found[:-1].flatten(), found[1:].flatten())[0, 1])) < 0.01
    assert abs(float(np.corrcoef(found[:, :-1].flatten(), found[:, 1:].flatten())[0, 1])) < 0.01


@given(st.integers(-(2**63), 2**63 - 1))
def test_seeds_of_choices_differ_and_the_first_is_the_requests_own(seed):
    seeds = [noise.choice_seed(seed, choice) for choice in range(8)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 8
    assert all(-(2**63) <= one < 2**63 for one in seeds)
