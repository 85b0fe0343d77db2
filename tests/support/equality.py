"""When an engine equals its oracle, in fp32.

Teacher-forced on the oracle's tokens, log-probabilities agree within 1e-4. Free-running and greedy, tokens agree up to
a first divergence, which may only stand where the oracle's two likeliest tokens are less than 1e-3 apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import torch
from engines import greedy, together
from transformers import AutoModelForCausalLM, PreTrainedModel

from byref.contract import SamplingParams
from byref.engine import Completion, Engine

TOLERANCE: Final = 1e-4
TIE: Final = 1e-3
TOP: Final = 20
"""So many of the likeliest tokens are compared at each position."""

Ids = Sequence[int]
Scores = Sequence[Mapping[int, float] | None]
"""Per position the log-probability of its token and of the likeliest ones; none at position 0."""
Serve = Callable[[Engine, Sequence[Ids], SamplingParams], list[Completion]]


class Oracle(Protocol):
    """Whom an engine is compared with."""

    def tokens(self, prompt: Ids, n: int) -> list[int]:
        """The n greedy tokens after the prompt, end tokens included."""
        ...

    def scores(self, ids: Ids) -> Scores:
        """Log-probabilities under its own model."""
        ...


class TransformersOracle:
    """A causal language model of transformers."""

    def __init__(self, model: PreTrainedModel) -> None:
        assert model.dtype is torch.float32
        self.model = model.eval()
        self.model.generation_config.eos_token_id = None

    def tokens(self, prompt: Ids, n: int) -> list[int]:
        ids = torch.tensor([prompt])
        found = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
        return found[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def scores(self, ids: Ids) -> Scores:
        logprobs = self.model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
        likeliest = logprobs.topk(TOP).indices.tolist()
        rows = [
            {i: float(row[i]) for i in {token, *top}}
            for row, token, top in zip(logprobs, ids[1:], likeliest, strict=True)
        ]
        return [None, *rows]


class Remembered(TransformersOracle):
    """The model of a folder, asked once for each text."""

    def __init__(self, folder: Path) -> None:
        super().__init__(AutoModelForCausalLM.from_pretrained(folder))
        ask_tokens, ask_scores = cache(super().tokens), cache(super().scores)
        self.tokens = lambda ids, n: ask_tokens(tuple(ids), n)
        self.scores = lambda ids: ask_scores(tuple(ids))


class EngineOracle:
    """Another engine: the one without plugins, say."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def tokens(self, prompt: Ids, n: int) -> list[int]:
        return list(self.engine.generate([prompt], greedy(n))[0].token_ids)

    def scores(self, ids: Ids) -> Scores:
        return self.engine.generate([ids], greedy(1, prompt_logprobs=TOP))[0].prompt_logprobs


def assert_equal(engine: Engine, oracle: Oracle, prompts: Sequence[Ids], tokens: int, serve: Serve = together) -> None:
    """The rule, for every prompt and `tokens` tokens after it; `serve` says how the requests reach the engine."""
    texts = [[*prompt, *oracle.tokens(prompt, tokens)] for prompt in prompts]
    expected = [oracle.scores(text) for text in texts]
    forced = serve(engine, texts, greedy(1, prompt_logprobs=TOP))
    free = serve(engine, prompts, greedy(tokens, logprobs=TOP))
    for prompt, text, scores, one, other in zip(prompts, texts, expected, forced, free, strict=True):
        assert_scores(one.prompt_logprobs, scores)
        assert_tokens(other, text[len(prompt) :], scores[len(prompt) :])


Answers = list[tuple[Ids, Scores]]
"""Per request the tokens that an engine gives, and their scores."""


def answers(engine: Engine, prompts: Sequence[Ids], params: Sequence[SamplingParams]) -> Answers:
    """What an engine answers, each request teacher-forced on its own tokens for the scores."""
    oracle, completions = EngineOracle(engine), together(engine, prompts, params)
    return [(c.token_ids, oracle.scores([*c.prompt_ids, *c.token_ids])[len(c.prompt_ids) :]) for c in completions]


def assert_answers(completions: Sequence[Completion], expected: Answers) -> None:
    """The rule for free-running tokens, request by request."""
    for one, (tokens, scores) in zip(completions, expected, strict=True):
        assert_tokens(one, tokens, scores)


def assert_scores(found: Scores, expected: Scores, where: str = "position") -> None:
    """Log-probabilities agree at every position, for its token and for every likely token that both name."""
    assert len(found) == len(expected)
    for position, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if theirs is None:
            assert mine is None
            continue
        both = mine.keys() & theirs.keys()
        assert len(both) > TOP // 2, f"{where} {position}: other tokens are likely"
        worst = max(both, key=lambda token: abs(mine[token] - theirs[token]))
        off = abs(mine[worst] - theirs[worst])
        assert off <= TOLERANCE, f"{where} {position}, token {worst}: {mine[worst]} is {off:.2e} off {theirs[worst]}"


def assert_tokens(found: Completion, expected: Ids, scores: Scores) -> None:
    """Free-running tokens agree up to a near tie, and until then log-probabilities agree as well."""
    assert len(found.token_ids) == len(expected)
    same = next(
        (i for i, pair in enumerate(zip(found.token_ids, expected, strict=True)) if len(set(pair)) > 1), len(expected)
    )
    assert_scores(found.logprobs[:same], scores[:same], "token")
    if same < len(expected):
        first, second = sorted(scores[same].values(), reverse=True)[:2]
        assert first - second < TIE, f"token {same}: {found.token_ids[same]} instead of {expected[same]}, and no tie"
