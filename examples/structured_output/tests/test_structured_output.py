"""Every answer has its form, whatever else goes on: drafts, several choices, preemption, aborts."""

from __future__ import annotations

import json
import re

import pytest
from byref_structured_output import StructuredOutput
from checkpoints import END
from drafts import Told
from engines import assert_idle, finish, start

from byref.contract import RequestError, SamplingParams

NAME = "structured_output"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = {"functions": [{"name": "f", "parameters": CITY}], "required": True, "parallel": False}
FORMS = [{"json_schema": PERSON}, {"regex": "[a-c]{5}x?"}, {"tools": CALL}, {"grammar": 'start: "ab" | "cd" start'}]
PROMPTS = [(5, 6, 7), (8, 9), (10, 11, 12, 13), (14, 15)]


def run(engine, params, forms=FORMS):
    """One request of each form, all at once."""
    ids = [engine.add(prompt, params, options={NAME: form}) for prompt, form in zip(PROMPTS, forms, strict=True)]
    return finish(engine, ids)


def check(text, form):
    """The text has the form."""
    if "json_schema" in form:
        person = json.loads(text)
        assert set(person) == {"name", "age"}
        assert 0 <= person["age"] <= 99
    elif "regex" in form:
        assert re.fullmatch(form["regex"], text)
    elif "tools" in form:
        call = json.loads(re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", text)[1])
        assert call["name"] == "f"
        assert call["arguments"]["city"] in {"Paris", "Rome"}
    else:
        assert re.fullmatch("(cd)*ab", text)


def left(engine):
    return engine.parts.host.plugin(NAME).instance._matchers


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_has_its_form(short_llama, temperature):
    params = SamplingParams(max_tokens=120, temperature=temperature, seed=1)
    with start(short_llama, {NAME: StructuredOutput}) as engine:
        for done, form in zip(run(engine, params), FORMS, strict=True):
            check(done.text, form)
            assert done.token_ids[-1] == END
        assert left(engine) == {}
        assert_idle(engine)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_nothing(short_llama, tree, temperature):
    params = SamplingParams(max_tokens=120, temperature=temperature, seed=7)
    with start(short_llama, {NAME: StructuredOutput}) as engine:
        plain = [done.token_ids for done in run(engine, params)]
    drafting = {"told": {"tree": tree, "most": 4, "right": 0.7}}
    with start(short_llama, {NAME: StructuredOutput, "told": Told}, drafting) as engine:
        told = engine.parts.host.plugin("told").instance
        told.reference = dict(zip(PROMPTS, plain, strict=True))
        assert [done.token_ids for done in run(engine, params)] == plain
        assert sum(told.accepted) > 10
        assert left(engine) == {}


def test_each_choice_has_its_own_state(short_llama):
    params = SamplingParams(max_tokens=120, temperature=1.0, seed=3, n=3)
    with start(short_llama, {NAME: StructuredOutput}) as engine:
        (done,) = finish(engine, [engine.add((5, 6, 7), params, options={NAME: FORMS[0]})])
        for choice in done.choices:
            check(choice.text, FORMS[0])
        assert len({choice.text for choice in done.choices}) > 1
        assert left(engine) == {}


def test_a_preempted_answer_goes_on_where_it_was(short_llama):
    paged = pytest.importorskip("byref_paged_kv").PagedKVPlugin
    params, calls = SamplingParams(max_tokens=64, temperature=1.0, seed=5), [{"tools": CALL}] * 4
    with start(short_llama, {NAME: StructuredOutput}) as engine:
        expected = [done.token_ids for done in run(engine, params, calls)]
    small = {"paged_kv": {"page_size": 4, "num_pages": 18, "prefix_cache": False}}
    with start(short_llama, {NAME: StructuredOutput, "paged_kv": paged}, small) as engine:
        assert [done.token_ids for done in run(engine, params, calls)] == expected
        assert engine.figures()["paged_kv"]["preemptions"] > 0


def test_what_is_free_stays_free(short_llama):
    params = SamplingParams(max_tokens=20)
    with start(short_llama) as engine:
        (plain,) = finish(engine, [engine.add((5, 6, 7), params)])
    with start(short_llama, {NAME: StructuredOutput}) as engine:
        ids = [engine.add((5, 6, 7), params), engine.add((8, 9), params, options={NAME: FORMS[1]})]
        assert finish(engine, ids)[0].token_ids == plain.token_ids


def test_an_aborted_answer_leaves_nothing(short_llama):
    with start(short_llama, {NAME: StructuredOutput}) as engine:
        id = engine.add((5, 6, 7), SamplingParams(max_tokens=100), options={NAME: FORMS[0]})
        engine.step()
        assert len(left(engine)) == 1
        engine.abort(id)
        assert left(engine) == {}


@pytest.mark.parametrize(
    "form", [{}, {"json_schema": {"type": "nonsense"}}, {"regex": "("}, {"regex": "a", "json_object": True}, {"jsn": 1}]
)
def test_a_form_that_cannot_be_followed_is_refused(short_llama, form):
    with start(short_llama, {NAME: StructuredOutput}) as engine, pytest.raises(RequestError):
        engine.add((5, 6, 7), options={NAME: form})
