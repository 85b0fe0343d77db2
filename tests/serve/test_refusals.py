"""What is refused, field by field: status 400, the field named, and the engine lives (faults S15 and S16)."""

import json

import pytest

NAN, INFINITY = float("nan"), float("inf")

COMPLETIONS = {
    "no such field": ({"temprature": 1}, "temprature"),
    "not supported": ({"suffix": "x"}, "suffix"),
    "best_of": ({"best_of": 2}, "best_of"),
    "user": ({"user": "me"}, "user"),
    "temperature NaN": ({"temperature": NAN}, "temperature"),
    "temperature infinite": ({"temperature": INFINITY}, "temperature"),
    "temperature negative": ({"temperature": -1}, "temperature"),
    "temperature text": ({"temperature": "1"}, "temperature"),
    "temperature truth value": ({"temperature": True}, "temperature"),
    "top_p 0": ({"top_p": 0}, "top_p"),
    "top_p 2": ({"top_p": 2}, "top_p"),
    "top_k": ({"top_k": -1}, "top_k"),
    "top_k fraction": ({"top_k": 1.5}, "top_k"),
    "min_p": ({"min_p": 1.1}, "min_p"),
    "presence": ({"presence_penalty": 2.1}, "presence_penalty"),
    "frequency": ({"frequency_penalty": NAN}, "frequency_penalty"),
    "repetition": ({"repetition_penalty": 0}, "repetition_penalty"),
    "n 0": ({"n": 0}, "n"),
    "n huge": ({"n": 10**9}, "n"),
    "n greedy": ({"n": 2, "temperature": 0}, "n"),
    "max_tokens 0": ({"max_tokens": 0}, None),
    "max_tokens negative": ({"max_tokens": -1}, "max_tokens"),
    "max_tokens text": ({"max_tokens": "4"}, "max_tokens"),
    "min_tokens": ({"min_tokens": 5}, "min_tokens"),
    "seed": ({"seed": 2**63}, "seed"),
    "stop empty": ({"stop": ""}, "stop[0]"),
    "stop number": ({"stop": 3}, "stop"),
    "stop_token_ids negative": ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    "stop_token_ids unreal": ({"stop_token_ids": [320]}, "stop_token_ids"),
    "logit_bias unreal": ({"logit_bias": {"320": 1}}, "logit_bias"),
    "logit_bias no id": ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]"),
    "logit_bias too much": ({"logit_bias": {"3": 101}}, "logit_bias.3"),
    "logit_bias NaN": ({"logit_bias": {"3": NAN}}, "logit_bias.3"),
    "allowed_token_ids unreal": ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    "banned_token_ids all": ({"banned_token_ids": list(range(320))}, "banned_token_ids"),
    "logprobs": ({"logprobs": 101}, "logprobs"),
    "logprobs truth value": ({"logprobs": True}, "logprobs"),
    "echo": ({"echo": "yes"}, "echo"),
    "stream": ({"stream": 1}, "stream"),
    "stream_options without stream": ({"stream_options": {"include_usage": True}}, None),
    "stream_options": ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    "priority": ({"priority": 0.5}, "priority"),
    "cache_salt empty": ({"cache_salt": ""}, "cache_salt"),
    "cache_salt number": ({"cache_salt": 7}, "cache_salt"),
    "request_id": ({"request_id": ""}, "request_id"),
    "plugins": ({"plugins": {"nobody": {}}}, "plugins.nobody"),
    "plugins table": ({"plugins": []}, "plugins"),
    "prompt empty": ({"prompt": ""}, "prompt"),
    "prompt nothing": ({"prompt": []}, "prompt"),
    "prompt empty item": ({"prompt": ["abc", ""]}, "prompt"),
    "prompt empty ids": ({"prompt": [[1], []]}, "prompt"),
    "prompt mixed": ({"prompt": [1, "a"]}, "prompt"),
    "prompt number": ({"prompt": 3}, "prompt"),
    "prompt negative": ({"prompt": [-1]}, "prompt"),
    "prompt truth value": ({"prompt": [True]}, "prompt"),
    "prompt unreal": ({"prompt": [320]}, "prompt"),
    "prompt table": ({"prompt": {"a": 1}}, "prompt"),
    "no prompt": ({"prompt": None}, "prompt"),
    "model": ({"model": 3}, "model"),
}

CHATS = {
    "functions": ({"functions": []}, "functions"),
    "no messages": ({"messages": []}, "messages"),
    "role": ({"messages": [{"role": "god", "content": "x"}]}, "messages[0].role"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0]"),
    "image": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
    "field of a message": ({"messages": [{"role": "user", "content": "x", "audio": 1}]}, "messages[0].audio"),
    "top_logprobs alone": ({"top_logprobs": 2}, None),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "logprobs number": ({"logprobs": 2}, "logprobs"),
    "both limits": ({"max_completion_tokens": 3}, None),
    "tool_choice alone": ({"tool_choice": "auto"}, None),
    "parallel alone": ({"parallel_tool_calls": True}, None),
    "tool kind": ({"tools": [{"type": "web"}]}, "tools[0].type"),
    "tool name": ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    "schema NaN": (
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"maximum": NAN}}}]},
        "tools[0].function.parameters",
    ),
    "other tool": (
        {
            "tools": [{"type": "function", "function": {"name": "a"}}],
            "tool_choice": {"type": "function", "function": {"name": "b"}},
        },
        None,
    ),
    "format": ({"response_format": {"type": "xml"}}, "response_format.type"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "no plugin for JSON": ({"response_format": {"type": "json_object"}}, "response_format"),
    "no plugin for tools": ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools"),
    "echo": ({"echo": True}, "echo"),
}


@pytest.mark.parametrize("case", COMPLETIONS)
def test_completions(served, case):
    fields, param = COMPLETIONS[case]
    answer = served.complete(**fields)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("case", CHATS)
def test_chats(served, case):
    fields, param = CHATS[case]
    answer = served.chat(**fields)
    assert answer.status == 400, answer.body
    assert param is None or answer.error["param"] == param, answer.body


def test_an_unsupported_value_is_refused_where_it_stands_in_the_messages(served):
    fields, _ = CHATS["image"]
    assert served.chat(**fields).error["param"].startswith("messages[0].content")


def test_a_plugin_that_is_missing_is_named(served):
    for fields in (CHATS["no plugin for JSON"][0], CHATS["no plugin for tools"][0]):
        assert "structured_output" in served.chat(**fields).error["message"]
    assert "nobody" in served.complete(plugins={"nobody": {}}).error["message"]


BODIES = {
    "not JSON": (b"{", 400),
    "cut off": (b'{"prompt": "a', 400),
    "no table": (b"[1, 2]", 400),
    "nothing": (b"", 400),
    "bytes": (b"\xff\xfe\x00", 400),
    "deep": (b'{"prompt": ' + b"[" * 100_000, 400),
    "long number": (b'{"prompt": "a", "seed": ' + b"9" * 6000 + b"}", 400),
    "half a character": (b'{"prompt": "\\ud800"}', 400),
    "half a character as a key": (b'{"prompt": "a", "\\ud800": 1}', 400),
    "half a character in stop": (b'{"prompt": "a", "stop": "\\ud800"}', 400),
    "half a character in an option": (b'{"prompt": "a", "plugins": {"\\ud800": {}}}', 400),
    "NaN deep inside": (b'{"prompt": "a", "plugins": {"x": {"y": [NaN]}}}', 400),
}


@pytest.mark.parametrize("case", BODIES)
def test_bodies(served, case):
    raw, status = BODIES[case]
    answer = served.ask("/v1/completions", raw=raw)
    assert answer.status == status, answer.body
    assert answer.error["message"]


def test_a_body_of_another_kind(served):
    answer = served.ask(
        "/v1/completions", raw=b"prompt=abc", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert answer.status == 400
    assert "Content-Type: application/json" in answer.error["message"]


def test_no_room_for_a_token_names_both_numbers(served):
    answer = served.complete([1] * 256)
    assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert "256 tokens" in answer.error["message"]
    assert "room for 256" in answer.error["message"]
    chat = served.chat("x" * 300)
    assert (chat.status, chat.error["param"]) == (400, "messages")
    assert served.complete([1] * 255, max_tokens=1).status == 200


def test_wrong_paths_and_methods(served):
    assert served.ask("/v1/nothing").status == 404
    assert served.ask("/v1/nothing").error["type"] == "not_found_error"
    assert served.ask("/v1/completions").status == 405
    assert served.ask("/v1/completions").error
    assert served.complete(model="gpt-4").status == 404
    assert served.complete(model="gpt-4").error["code"] == "model_not_found"


def test_a_null_field_was_not_given(served):
    assert served.complete(stop=None, logprobs=None, seed=None, cache_salt=None, temperature=None).status == 200


def test_the_engine_lives(served):
    served.assert_idle()
    assert served.ask("/health").body == {"status": "ready"}
    assert served.complete(temperature=0).status == 200


def test_a_detokenized_id_is_real(served):
    answer = served.ask("/detokenize", {"tokens": [320]})
    assert (answer.status, answer.error["param"]) == (400, "tokens")


def test_every_error_is_json(served):
    answer = served.ask("/v1/completions", raw=json.dumps({"prompt": "a", "x\ny": 1}).encode())
    assert answer.error["param"] == "x\ny"
