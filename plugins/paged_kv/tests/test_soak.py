"""Many requests on few pages: sharing, aborts and preemption together, and at the end everything is back."""

from __future__ import annotations

import random

import engines
from checkpoints import VOCABULARY
from engines import greedy, step
from equality import TOP, assert_tokens
from paging import assert_idle, start

from byref.contract.requests import Reason

REQUESTS = 200


def test_200_requests_on_a_tenth_of_the_pages_they_need(short_llama):
    draw = random.Random(11)
    shared = [[draw.randrange(VOCABULARY) for _ in range(40)] for _ in range(3)]
    prompts = []
    for i in range(REQUESTS):
        own = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 30))]
        prompts.append([*draw.choice(shared)[: draw.randint(8, 40)], *own] if i % 2 else own)
    params = [greedy(draw.randint(4, 24), logprobs=TOP) for _ in prompts]
    aborted = set(draw.sample(range(REQUESTS), REQUESTS * 3 // 10))
    need = sum(len(p) + q.max_tokens for p, q in zip(prompts, params, strict=True))
    sizes = {"max_requests": 32, "max_rows": 96, "chunk": 24}
    with start(short_llama, paged={"page_size": 8, "num_pages": need // 80}, **sizes) as engine:
        ids, done, ended = [], {}, set()
        while len(done) < REQUESTS - len(ended):
            for _ in range(draw.randint(0, 6)):
                if len(ids) < REQUESTS:
                    ids.append(engine.add(prompts[len(ids)], params[len(ids)]))
            step(engine, done)
            for i in aborted:
                if i < len(ids) and ids[i] not in done and ids[i] not in ended and draw.random() < 0.2:
                    assert engine.abort(ids[i]).finished is Reason.ABORTED
                    ended.add(ids[i])
        assert_idle(engine)
        figures = engine.parts.kv.figures()
    assert len(ended) > REQUESTS // 5
    assert figures["preemptions"] > 0
    assert figures["evictions"] > 0
    assert figures["hit_tokens"] > 500
    with engines.start(short_llama) as plain:
        for id, prompt, one in zip(ids, prompts, params, strict=True):
            if id in done:
                assert done[id].finished is Reason.LENGTH
                (solo,) = plain.generate([prompt], one)
                assert_tokens(done[id], solo.token_ids, solo.logprobs)
