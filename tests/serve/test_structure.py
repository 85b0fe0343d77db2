"""Answers in a form: JSON, schemas and calls of tools, whole and streamed."""

import json

import pytest

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
WEATHER = {"type": "function", "function": {"name": "weather", "description": "how it is", "parameters": CITY}}
NAP = {"type": "function", "function": {"name": "nap", "parameters": {"type": "object", "additionalProperties": False}}}
QUESTION = [{"role": "user", "content": "how is the weather?"}]


@pytest.fixture(scope="module")
def client(structured):
    with structured.client() as one:
        yield one


def ask(client, **fields):
    asked = {"model": "tiny", "messages": QUESTION, "max_tokens": 120, "seed": 1}
    return client.chat.completions.create(**(asked | fields))


def test_a_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    answer = ask(client, response_format=form).choices[0]
    person = json.loads(answer.message.content)
    assert set(person) == {"name", "age"}
    assert 0 <= person["age"] <= 99
    assert answer.finish_reason == "stop"
    streamed = "".join(event.choices[0].delta.content or "" for event in ask(client, response_format=form, stream=True))
    assert streamed == answer.message.content


def test_any_object(client):
    answer = ask(client, response_format={"type": "json_object"}, logit_bias={"92": 10}, temperature=1.5)
    assert answer.choices[0].message.content.startswith("{")


def test_text_is_free(client):
    free = ask(client, response_format={"type": "text"}, max_tokens=8).choices[0].message.content
    assert free == ask(client, max_tokens=8).choices[0].message.content


def test_a_call_that_is_required(client):
    answer = ask(client, tools=[WEATHER, NAP], tool_choice="required", parallel_tool_calls=False).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name in {"weather", "nap"}
    assert isinstance(json.loads(call.function.arguments), dict)
    assert answer.message.content is None


def test_a_call_of_one_function_whole_and_streamed(client):
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = ask(client, tools=[NAP, WEATHER], tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}
    events = [event.choices[0] for event in ask(client, tools=[NAP, WEATHER], tool_choice=choice, stream=True)]
    (streamed,) = [one for event in events for one in event.delta.tool_calls or ()]
    assert streamed.function.model_dump() == call.function.model_dump()
    assert events[-1].finish_reason == "tool_calls"
    assert not any(event.delta.content for event in events)


def test_a_call_is_optional(client):
    answer = ask(client, tools=[WEATHER], max_tokens=12).choices[0]
    assert answer.message.tool_calls is None
    assert answer.message.content
    assert answer.finish_reason in {"stop", "length"}


def test_none_is_called_where_none_may_be(client, structured):
    without = ask(client, max_tokens=6, temperature=0)
    answer = ask(client, tools=[WEATHER], tool_choice="none", max_tokens=6, temperature=0)
    assert answer.choices[0].message == without.choices[0].message
    assert answer.usage == without.usage


def test_a_conversation_that_called(client):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [
        *QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    assert ask(client, messages=turns, tools=[WEATHER], max_tokens=4).choices[0].message


def test_what_cannot_be_followed(structured):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    answer = structured.chat(response_format=form)
    assert (answer.status, answer.error["param"]) == (400, "response_format")
    both = structured.chat(response_format={"type": "json_object"}, tools=[WEATHER])
    assert (both.status, both.error["param"]) == (400, "response_format")
    unknown = structured.complete(plugins={"structured_output": {"jsn": True}})
    assert (unknown.status, unknown.error["param"]) == (400, "plugins.structured_output.jsn")


def test_options_of_a_request_reach_the_plugin(structured):
    answer = structured.complete(plugins={"structured_output": {"regex": "[ab]{3}"}}, max_tokens=10)
    assert set(answer.body["choices"][0]["text"]) <= {"a", "b"}
    assert len(answer.body["choices"][0]["text"]) == 3
