"""Every parameter that is out of range, no number or outside the real vocabulary is refused by name; the engine lives."""

from __future__ import annotations

import math

import pytest
import torch
from checkpoints import END, VOCABULARY, save_llama
from engines import assert_idle, greedy, start, together

from byref.contract import API_VERSION, Plugin, PluginInfo, RequestError, SamplingParams, hookimpl
from byref.contract.requests import Reason
from byref.engine.intake import parse_params

NAN, INF = math.nan, math.inf
NUMBERS = {
    "temperature": [-0.1, 101, NAN, INF, "1", None, True],
    "top_p": [0, -1, 1.01, NAN, "a"],
    "min_p": [-0.01, 1.5, NAN, INF],
    "top_k": [-1, 1.5, NAN, "5", True],
    "presence_penalty": [-2.1, 2.1, NAN, -INF],
    "frequency_penalty": [-2.1, 2.1, NAN, INF],
    "repetition_penalty": [0, -1, NAN, INF, 101],
    "max_tokens": [0, -5, 2.5, NAN, None, "9"],
    "min_tokens": [-1, 0.5, NAN],
    "n": [0, -2, 1.5, NAN, 5000],
    "seed": [2**63, -(2**63) - 1, 1.0, "x", NAN],
    "logprobs": [-1, 101, NAN, True],
    "prompt_logprobs": [-1, 101, 0.5],
    "stop": ["", [""], "ab", [3]],
    "ignore_eos": [1, "yes", None],
    "logit_bias": [[3], {-1: 1.0}, {1: NAN}, {1: INF}, {1: 101}, {"x": 1.0}, {1: None}],
    "allowed_token_ids": [[], [-1], [1.5], ["a"], 3],
    "banned_token_ids": [[-1], [NAN], None],
    "stop_token_ids": [[-1], [1.5], "12"],
}
CASES = [(name, value) for name, values in NUMBERS.items() for value in values]


@pytest.fixture(scope="module")
def engine(tiny_llama):
    with start(tiny_llama) as running:
        yield running
        assert_idle(running)


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{name}-{value!r}" for name, value in CASES])
def test_a_wrong_value_is_refused_by_name(engine, name, value):
    with pytest.raises(RequestError, match=name) as error:
        engine.add([1, 2], {name: value})
    assert "pydantic" not in str(error.value)
    assert engine.idle
    with pytest.raises(RequestError) as written:
        SamplingParams(**{name: value})
    assert str(written.value) == str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"temprature": 1.0}, "unknown key 'temprature'"),
        ({"min_tokens": 5, "max_tokens": 4}, r"min_tokens \(5\) may not exceed max_tokens \(4\)"),
        ({"n": 3}, r"n \(3\) choices at temperature 0 would all be the same"),
        ({"allowed_token_ids": [4, 5], "banned_token_ids": [4, 5]}, "banned_token_ids leave no token to choose"),
        ({"allowed_token_ids": [END, 5], "banned_token_ids": [5], "min_tokens": 1}, "min_tokens forbid every token"),
        ({"banned_token_ids": list(range(VOCABULARY))}, "banned_token_ids leave no token to choose"),
        ({"temperature": -1, "top_p": 2}, "2 values are wrong"),
        ([("temperature",)], "no table"),
        (7, "no table"),
    ],
    ids=str,
)
def test_what_does_not_fit_together_is_refused(engine, table, message):
    with pytest.raises(RequestError, match=message):
        engine.add([1, 2], table)
    assert engine.idle


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"])
@pytest.mark.parametrize("id", [VOCABULARY, 10**30])
def test_an_id_outside_the_real_vocabulary_is_refused_by_name(engine, name, id):
    value = {id: 1.0} if name == "logit_bias" else [id]
    with pytest.raises(RequestError, match=f"token id {id} in {name} is outside the vocabulary of {VOCABULARY}"):
        engine.add([1, 2], SamplingParams(**{name: value}))
    assert engine.idle


def test_padding_of_the_models_vocabulary_is_outside(tmp_path):
    with start(save_llama(tmp_path, vocab_size=VOCABULARY + 64)) as engine:
        with pytest.raises(
            RequestError, match=f"token id {VOCABULARY} in the prompt is outside the vocabulary of {VOCABULARY}"
        ):
            engine.add([1, VOCABULARY])
        with pytest.raises(RequestError, match="in stop_token_ids"):
            engine.add([1], {"stop_token_ids": [VOCABULARY + 3]})
        params = {"max_tokens": 40, "temperature": 100.0, "seed": 1, "ignore_eos": True, "logprobs": 100}
        (done,) = engine.generate([[1, 2]], params)
        assert max(done.token_ids) < VOCABULARY
        assert max(max(scores) for scores in done.logprobs) < VOCABULARY


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([1, VOCABULARY], f"token id {VOCABULARY} in the prompt is outside the vocabulary"),
        ([-1], "token id -1 in the prompt is outside"),
        ([1.5], "neither text nor a list of token ids"),
        ([NAN], "neither text nor a list of token ids"),
        ([True], "neither text nor a list of token ids: True is no token id"),
        (["a"], "neither text nor a list of token ids"),
        (None, "neither text nor a list of token ids"),
        (7, "neither text nor a list of token ids"),
        ("\ud800", "the prompt is no valid text"),
        (b"\xff", "the prompt is no valid text"),
        ([1] * 256, "the prompt has 256 tokens, and the model has room for 256"),
    ],
    ids=[*"abcdefghijklm"],
)
def test_a_wrong_prompt_is_refused(engine, prompt, message):
    with pytest.raises(RequestError, match=message):
        engine.add(prompt)
    assert engine.idle
    assert engine.generate([[1, 2]], greedy(2))[0].finished is Reason.LENGTH


def test_any_integers_are_token_ids(engine):
    (plain,) = engine.generate([[5, 6]], greedy(3))
    (tensor,) = engine.generate([torch.tensor([5, 6])], greedy(3))
    assert tensor.token_ids == plain.token_ids
    assert tensor.prompt_ids == (5, 6)


@pytest.mark.parametrize("id", ["", 3, b"x"])
def test_a_request_id_is_text(engine, id):
    with pytest.raises(RequestError, match=r"the request id .* is no text"):
        engine.add([1], id=id)


def test_nothing_is_left_of_a_batch_with_an_empty_item(engine):
    with pytest.raises(RequestError, match="the prompt is empty"):
        engine.generate([[1, 2], [], [3]], greedy(2))
    assert_idle(engine)


def test_parameters_parse_from_a_table():
    params = parse_params({"logit_bias": {"7": 1}, "stop": ["a"], "temperature": 1})
    assert params == SamplingParams(logit_bias={7: 1.0}, stop=("a",), temperature=1.0)
    assert parse_params(params) is params
    assert parse_params(None) == SamplingParams()


class Mask(Plugin):
    """Masks every token of requests whose prompt begins with 9, from the third token on."""

    info = PluginInfo(api_version=API_VERSION)

    @hookimpl
    def adjust_logits(self, rows):
        for row, logits in rows:
            if row.request.prompt[0] == 9 and row.position >= len(row.request.prompt) + 2:
                logits.fill_(-INF)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_without_a_token_to_choose_fails_alone(tiny_llama, temperature):
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=temperature, seed=1, logprobs=1)
    with start(tiny_llama) as engine:
        expected = [done.token_ids for done in engine.generate([[9, 2], [5, 2]], params)]
    with start(tiny_llama, {"mask": Mask}) as engine:
        masked, other = together(engine, [[9, 2], [5, 2]], params)
        assert_idle(engine)
    assert other.token_ids == expected[1]
    assert masked.finished is Reason.FAILED
    assert isinstance(masked.error, RequestError)
    assert "no token is left to choose at position 4" in masked.error.what
    assert masked.token_ids == expected[0][:2]
    assert len(masked.logprobs) == 2


def test_every_declared_end_token_ends_the_turn_but_not_before_min_tokens(tmp_path):
    """Of the configuration, of the generation configuration and of the tokenizer."""
    folder = save_llama(tmp_path, eos_token_id=[40, 41])
    (folder / "generation_config.json").write_text('{"eos_token_id": [41, 42]}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    ends = [40, 41, 42, END]
    with start(folder) as engine:
        for end in ends:
            force = {"logit_bias": {end: 100.0}, "max_tokens": 5}
            (done,) = engine.generate([[1, 2]], force)
            assert (done.token_ids, done.finished) == ((end,), Reason.STOP)
            (later,) = engine.generate([[1, 2]], {**force, "min_tokens": 3})
            assert (len(later.token_ids), later.token_ids[-1], later.finished) == (4, end, Reason.STOP)
            assert not set(later.token_ids[:-1]) & set(ends)
            (ignored,) = engine.generate([[1, 2]], {**force, "ignore_eos": True, "stop_token_ids": [1]})
            assert ignored.token_ids == (end,) * 5


def test_stop_strings_are_not_looked_for_before_min_tokens(engine):
    (plain,) = engine.generate([[1, 2]], {"logit_bias": {66: 100.0}, "max_tokens": 6})
    letter = plain.text[0]
    (done,) = engine.generate([[1, 2]], {"logit_bias": {66: 100.0}, "max_tokens": 6, "min_tokens": 3, "stop": [letter]})
    assert (done.text, len(done.token_ids), done.finished) == (letter * 3, 4, Reason.STOP)
