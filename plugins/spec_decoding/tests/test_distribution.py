"""Over many seeds tokens come as often as the model says, whoever drafts: at first, middle and bonus positions.

Fault S03. The vocabulary is so small that the chance of every text can be written down.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from checkpoints import save_llama
from doubles import Scripted, drafter, plugin, start_with
from engines import start, together

from byref.contract import API_VERSION, Plugin, PluginInfo, SamplingParams, hookimpl
from byref.contract.step import Window
from byref.engine.speculator import PlainSpeculator
from byref_spec_decoding import odds

VOCABULARY = 6
PROMPT = (1, 2, 3)
DRAFTS = (2, 4)
"""What the double drafts after the first token: two positions, and a bonus position behind them."""
TOKENS = len(DRAFTS) + 2
SEEDS = 1500
TEMPERATURE = 1.3
BATCH = 64
SHAPE = {"num_hidden_layers": 1, "vocab_size": VOCABULARY, "initializer_range": 0.1}

Chances = dict[tuple[int, ...], float]


class Fates(Plugin):
    """Notes the first window with drafts of each request, and how many of them stayed."""

    info = PluginInfo(api_version=API_VERSION)

    def __init__(self, name, options):
        super().__init__(name, options)
        self.windows: dict[str, tuple[Window, int]] = {}

    @hookimpl
    def commit(self, step):
        for window in step.plan.windows:
            if window.drafts:
                kept = len(step.outcome[window.request].tokens) - 1
                self.windows.setdefault(window.request, (window, kept))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("six-words"), 5, **SHAPE)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another model of the same words, which drafts for the first."""
    return save_llama(tmp_path_factory.mktemp("six-other-words"), 6, **SHAPE)


def following(path, most: int) -> dict[tuple[int, ...], dict[int, float]]:
    """After the prompt and up to `most` words, the chance of each next one, from an engine that draws nothing."""
    texts = [(*PROMPT, *words) for n in range(most + 1) for words in itertools.product(range(VOCABULARY), repeat=n)]
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=VOCABULARY)
    with start(path, max_requests=BATCH, max_rows=512) as engine:
        done = together(engine, texts, params)
    return {one.prompt_ids[len(PROMPT) :]: dict(warmed(one.logprobs[0])) for one in done}


@pytest.fixture(scope="module")
def chances(tiny) -> Chances:
    """Of every text of TOKENS words after the prompt."""
    next_words = following(tiny, TOKENS - 1)
    found: Chances = {(): 1.0}
    for _ in range(TOKENS):
        found = {(*text, t): p * q for text, p in found.items() for t, q in next_words[text].items()}
    return found


def warmed(scores: dict[int, float]) -> list[tuple[int, float]]:
    weights = {token: math.exp(score / TEMPERATURE) for token, score in scores.items()}
    return [(token, weight / sum(weights.values())) for token, weight in weights.items()]


def drawn(path, name: str, options=None, seeds: int = SEEDS, **more):
    """The tokens of so many seeds, and the fate of each one's drafts."""
    table = {"max_draft_tokens": len(DRAFTS), "options": options or {}, **more}
    with start_with(path, name, table, {"fates": Fates}, max_requests=BATCH, max_rows=4 * BATCH) as engine:
        if isinstance(drafter(engine), Scripted):
            drafter(engine).reference = {PROMPT: (0, *DRAFTS)}
        each = [
            SamplingParams(max_tokens=TOKENS, temperature=TEMPERATURE, seed=seed, ignore_eos=True)
            for seed in range(seeds)
        ]
        done = together(engine, [PROMPT] * seeds, each)
        return [one.token_ids for one in done], plugin(engine, "fates").windows.values()


def deviations(counts: Counter, expected: Chances) -> float:
    """Chi-squared, in standard deviations above what chance gives; what is expected less than 5 times is one cell."""
    total = sum(counts.values())
    cells = [(counts[key], total * p) for key, p in expected.items() if total * p >= 5]
    rest = total - sum(e for _, e in cells)
    if rest > 5:
        cells.append((total - sum(c for c, _ in cells), rest))
    statistic, freedom = sum((c - e) ** 2 / e for c, e in cells), len(cells) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def marginal(chances: Chances, at: slice) -> Chances:
    found: Chances = {}
    for text, p in chances.items():
        found[text[at]] = found.get(text[at], 0.0) + p
    return found


def assert_distributed(texts, chances: Chances) -> None:
    """Each position alone, neighbours, and the whole."""
    for at in (*(slice(i, j) for i in range(TOKENS) for j in (i + 1, i + 2) if j <= TOKENS), slice(0, TOKENS)):
        assert abs(deviations(Counter(text[at] for text in texts), marginal(chances, at))) < 4, at


@pytest.fixture(scope="module")
def draws(tiny, other):
    """With a double, whose drafts are always the same, and with a model that draws them, kept by either rule."""
    return {
        "hard": drawn(tiny, "scripted"),
        "soft": drawn(tiny, "draft_model", {"model": str(other)}),
        "rejection": drawn(tiny, "draft_model", {"model": str(other)}, accept="rejection"),
    }


@pytest.mark.parametrize("kind", ["hard", "soft", "rejection"])
def test_tokens_come_as_often_as_the_model_says(draws, chances, kind):
    texts, fates = draws[kind]
    kept = Counter(n for _, n in fates)
    assert all(kept[n] > SEEDS / 100 for n in range(len(DRAFTS) + 1)), "every number of drafts is kept now and then"
    assert_distributed(texts, chances)


def test_a_deterministic_draft_is_accepted_as_often_as_it_is_likely(draws, chances):
    """So it is by rejection sampling."""
    texts, fates = draws["hard"]
    assert {window.tokens[window.known :] for window, _ in fates} == {DRAFTS}
    for n in range(1, len(DRAFTS) + 1):
        p = sum(chance for text, chance in chances.items() if text[1 : n + 1] == DRAFTS[:n])
        kept = sum(kept >= n for _, kept in fates)
        assert kept == sum(text[1 : n + 1] == DRAFTS[:n] for text in texts)
        assert abs(kept - SEEDS * p) < 4 * math.sqrt(SEEDS * p * (1 - p))


def test_a_soft_draft_is_accepted_more_often_than_by_chance(draws):
    """It is drawn with the target's own noise."""
    soft, hard = (sum(kept >= 1 for _, kept in draws[kind][1]) for kind in ("soft", "hard"))
    assert soft > 1.5 * hard


def test_rejection_accepts_as_often_as_the_distributions_overlap(draws, tiny, other):
    """By sum of min(p, q), which no other rule exceeds."""
    mine, theirs = following(tiny, 1), following(other, 1)
    overlap = {t: sum(min(p, theirs[t,][x]) for x, p in mine[t,].items()) for t in range(VOCABULARY)}
    expected = sum(p * overlap[t] for t, p in mine[()].items())
    kept = {kind: sum(kept >= 1 for _, kept in draws[kind][1]) for kind in ("soft", "rejection")}
    assert abs(kept["rejection"] - SEEDS * expected) < 4 * math.sqrt(SEEDS * expected * (1 - expected))
    assert kept["rejection"] > kept["soft"]


def test_greedy_requests_are_not_touched_by_rejection(tiny, other):
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    with start(tiny) as engine:
        expected = together(engine, [PROMPT], params)[0]
    with start_with(tiny, "draft_model", {"options": {"model": str(other)}, "accept": "rejection"}) as engine:
        assert together(engine, [PROMPT], params)[0].token_ids == expected.token_ids
        assert not plugin(engine, "spec_decoding").info.lossless


def test_scores_are_those_of_the_tokens_that_came(tiny, other):
    """Rejection sampling keeps another token than the row's own choice."""
    params = SamplingParams(max_tokens=12, temperature=TEMPERATURE, seed=1, n=4, ignore_eos=True, logprobs=0)
    with start_with(tiny, "draft_model", {"options": {"model": str(other)}, "accept": "rejection"}) as engine:
        choices = together(engine, [PROMPT], params)[0].choices
    score = SamplingParams(max_tokens=1, prompt_logprobs=0)
    with start(tiny) as engine:
        for one in choices:
            text = [*PROMPT, *one.token_ids]
            expected = together(engine, [text], score)[0].prompt_logprobs[len(PROMPT) :]
            for mine, theirs in zip(one.logprobs, expected, strict=True):
                assert mine == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("fault", ["what is left", "odds", "chance"])
def test_rejection_that_is_wrong_is_seen(tiny, other, chances, monkeypatch, fault):
    if fault == "what is left":
        monkeypatch.setattr(odds.Odds, "taken_from", lambda self, tokens, shares: shares)
    elif fault == "odds":
        monkeypatch.setattr(odds.Odds, "of", lambda self, token: 1 / VOCABULARY)
    else:
        monkeypatch.setattr(odds, "_uniform", lambda request, position: 0.5)
    texts, _ = drawn(tiny, "draft_model", {"model": str(other)}, accept="rejection")
    with pytest.raises(AssertionError):
        assert_distributed(texts, chances)


def test_the_check_can_fail(tiny, chances, monkeypatch):
    """The fault: now and then a draft stays by its drafter's word alone."""
    real = PlainSpeculator.verify

    def believed(info, token):
        known = info.row + 1 < len(info.window.tokens) and (info.request.seed + info.position) % 5 == 0
        return info.window.tokens[info.row + 1] if known else token

    def verify(self, rows, chosen):
        return real(self, rows, [believed(info, token) for info, token in zip(rows.infos, chosen, strict=True)])

    monkeypatch.setattr(PlainSpeculator, "verify", verify)
    texts, _ = drawn(tiny, "scripted")
    with pytest.raises(AssertionError):
        assert_distributed(texts, chances)
