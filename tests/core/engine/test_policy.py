"""Who is served first: by arrival, by priority, by length; and what no configuration or request may say."""

from __future__ import annotations

import pytest
from engines import finish, greedy, start

from byref.contract import ConfigError, RequestError


def order(tiny_llama, policy: str) -> str:
    """The requests in the order they end in, one at a time, after one that was there first."""
    with start(tiny_llama, policy=policy, max_requests=1, max_rows=16) as engine:
        ended: list[str] = []
        engine.add([1, 2], greedy(2), id="first")
        engine.step()
        engine.add([1, 2, 3, 4], greedy(8), id="a", priority=1)
        engine.add([1, 2], greedy(6), id="b", priority=-3)
        engine.add([1], greedy(2), id="c", priority=0)
        engine.add([1, 2], greedy(6), id="d", priority=-3)
        while not engine.idle:
            ended += [chunk.request_id for chunk in engine.step() if chunk.completion is not None]
        return "".join(ended).removeprefix("first")


@pytest.mark.parametrize(("policy", "expected"), [("fifo", "abcd"), ("priority", "bdca"), ("shortest", "cbda")])
def test_requests_are_served_in_the_policys_order(tiny_llama, policy, expected):
    assert order(tiny_llama, policy) == expected


def test_an_unknown_policy_names_those_there_are(tiny_llama):
    with pytest.raises(ConfigError, match="no scheduling policy 'fair'") as error:
        start(tiny_llama, policy="fair")
    assert "fifo, priority, shortest" in str(error.value)


@pytest.mark.parametrize("priority", [1.5, float("nan"), "high", True])
def test_a_priority_is_an_integer(tiny_llama, priority):
    with start(tiny_llama) as engine:
        with pytest.raises(RequestError, match=r"the priority .* is no integer"):
            engine.add([1], priority=priority)
        assert engine.idle


def test_what_never_fits_is_refused_at_once_and_others_go_on(tiny_llama):
    with start(tiny_llama, kv_tokens=64, max_context=200) as engine:
        id = engine.add([1, 2, 3], greedy(4))
        with pytest.raises(RequestError, match=r"request big can never run: .*104.*64"):
            engine.add([1] * 4, greedy(100), id="big")
        assert len(finish(engine, [id])[0].token_ids) == 4
        assert len(engine.generate([[1] * 40], greedy(24))[0].token_ids) == 24


def test_the_context_is_that_of_the_configuration(tiny_llama):
    with start(tiny_llama, max_context=20) as engine:
        with pytest.raises(
            RequestError, match="the prompt has 20 tokens, and the model has room for 20, one of them new"
        ):
            engine.add([1] * 20)
        (done,) = engine.generate([[1] * 15], greedy(100))
        assert len(done.token_ids) == 5
    with pytest.raises(ConfigError, match="max_context is 300, and the model has positions for 256"):
        start(tiny_llama, max_context=300)
