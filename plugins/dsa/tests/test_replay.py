"""Every kind of forward of a sparse model replays: prompts, decoding, mixtures, windows of drafts, padding."""

from __future__ import annotations

import random

from checkpoints import VOCABULARY
from drafts import Told
from engines import assert_idle, greedy, one_per_step, start
from equality import TOP, answers, assert_answers
from replays import Checked

from byref.contract import Kind

PROMPTS = [tuple(random.Random(n).randrange(VOCABULARY) for _ in range(n)) for n in (9, 3, 17)]
PARAMS = [greedy(4 + i, logprobs=TOP) for i in range(len(PROMPTS))]
WIDE = {"max_requests": 4, "max_rows": 16, "chunk": 6}


def test_replay_equals_eager_for_every_kind_of_forward(family):
    _, folder, _ = family
    enable = {"enable": ["models", "dsa"], "told": {"most": 3}}
    with start(folder, None, {"enable": ["models", "dsa"]}, **WIDE) as engine:
        expected = answers(engine, PROMPTS, PARAMS)
    with start(folder, {"told": Told}, enable, capture="tape", **WIDE) as engine:
        told = engine.parts.host.plugin("told").instance
        told.reference = {prompt: tokens for prompt, (tokens, _) in zip(PROMPTS, expected, strict=True)}
        checked = Checked(engine)
        assert_answers(one_per_step(engine, PROMPTS, PARAMS), expected)
        engine.parts.forwards("target", ())
        assert_idle(engine)
    assert {ctx.kind for ctx in checked.runs} == set(Kind)
    assert checked.contexts.keys() == checked.inner.keys
