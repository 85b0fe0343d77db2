"""The first party's plugins and structured output, all in one server: drafts change how fast an answer comes, not what it is."""

import json

import pytest
from checkpoints import LETTERS
from serving import serving

SETTINGS = {
    "paged_kv": {"num_pages": 60},
    "spec_decoding": {"drafter": "ngram", "adaptive": False, "max_draft_tokens": 4},
}
OFF = {"spec_decoding": {"max_draft_tokens": 0}}
SCHEMA = {
    "type": "object",
    "properties": {
        "birds": {"type": "array", "items": {"enum": ["blackbird", "bluebird"]}, "minItems": 4, "maxItems": 6},
        "name": {"type": "string", "maxLength": 6},
    },
    "required": ["birds", "name"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "birds", "schema": SCHEMA}}
SAMPLED = {"temperature": 0.7, "seed": 5}
FEW = {**SAMPLED, "allowed_token_ids": [LETTERS.index(letter) for letter in "xyz"]}
"""Few enough for something to come again, which this drafter lives on."""
COMPLETIONS = {
    "greedy": {"temperature": 0},
    "sampled": FEW,
    "several choices": {**FEW, "n": 3},
    "several prompts": {"prompt": ["a bird, a bird, a bird", [5, 6, 7, 5, 6, 7]], "temperature": 0},
    "penalties and bias": {"temperature": 0, "frequency_penalty": 0.3, "logit_bias": {"70": 2.5}},
    "a stop string": {**FEW, "stop": ["xyzz", "zzz"], "min_tokens": 20},
    "echo": {"temperature": 0, "echo": True},
}


@pytest.fixture(scope="module")
def drafting(talker):
    """A server with every plugin."""
    plugins = {
        "paged_kv": pytest.importorskip("byref_paged_kv").PagedKVPlugin,
        "spec_decoding": pytest.importorskip("byref_spec_decoding").SpecDecoding,
        "structured_output": pytest.importorskip("byref_structured_output").StructuredOutput,
    }
    with serving(talker, plugins, SETTINGS) as server:
        yield server
        server.until(lambda: not server.desk.open)
        assert server.engine.usage()["used_tokens"] == 0


@pytest.fixture(scope="module")
def client(drafting):
    with drafting.client() as one:
        yield one


def alike(one, other) -> None:
    """Equal in all but how it was come by: log-probabilities within 1e-4."""
    one, other = one.model_dump(), other.model_dump()
    for mine, theirs in zip(one["choices"], other["choices"], strict=True):
        scores, expected = ((choice.pop("logprobs") or {}) for choice in (mine, theirs))
        assert mine == theirs
        assert scores.get("tokens") == expected.get("tokens")
        for a, b in zip(scores.get("token_logprobs", ()), expected.get("token_logprobs", ()), strict=True):
            assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.parametrize("case", COMPLETIONS)
def test_completions_are_those_without_drafts(client, structured, case):
    asked = {"model": "tiny", "prompt": "a bird, a bird", "max_tokens": 48, "logprobs": 1}
    known = client.completions.create.__annotations__
    fields = asked | COMPLETIONS[case]
    extra = {name: fields.pop(name) for name in tuple(fields) if name not in known}
    drafted = client.completions.create(**fields, extra_body=extra)
    with structured.client() as plain:
        alike(drafted, plain.completions.create(**fields, extra_body=extra))
    alike(drafted, client.completions.create(**fields, extra_body={**extra, "plugins": OFF}))
    assert drafted.usage.drafts["drafted"] > 0


@pytest.mark.parametrize("fields", [{"temperature": 0}, SAMPLED, {**SAMPLED, "n": 2}])
def test_chats_that_follow_a_schema_are_those_without_drafts(client, structured, fields):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "birds?"}], "max_tokens": 200}
    drafted = client.chat.completions.create(**asked, **fields, response_format=FORM)
    with structured.client() as plain:
        alike(drafted, plain.chat.completions.create(**asked, **fields, response_format=FORM))
    for choice in drafted.choices:
        birds = json.loads(choice.message.content)
        assert set(birds) == {"birds", "name"}
        assert 4 <= len(birds["birds"]) <= 6
    assert drafted.usage.drafts["accepted"] > 10, "no draft was accepted under a mask"
    events = list(client.chat.completions.create(**asked, **fields, response_format=FORM, stream=True))
    for choice in drafted.choices:
        pieces = [event.choices[0] for event in events if event.choices[0].index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content


def test_steps_mark_what_drafts_brought_and_all_counts_agree(client, drafting):
    names = ("byref_drafts_verified_total", "byref_drafts_accepted_total")
    before = drafting.figures()
    asked = {"model": "tiny", "prompt": "a bird, a bird", "max_tokens": 60, "temperature": 0}
    more = {"stream_options": {"include_steps": True, "include_usage": True}, "extra_body": {"ignore_eos": True}}
    *events, last = client.completions.create(**asked, stream=True, **more)
    pieces = [piece for event in events for piece in event.byref["pieces"]]
    steps = {event.byref["step"]["number"]: event.byref["step"] for event in events}
    drafts = last.usage.drafts
    text = "".join(event.choices[0].text for event in events)
    assert "".join(piece for piece, _ in pieces) == text
    marked = "".join(piece for piece, drafted in pieces if drafted)
    assert 0 < len(marked) < len(text)
    assert 0 < drafts["accepted"] <= drafts["drafted"]
    assert len(steps) == last.usage.completion_tokens - drafts["accepted"]
    assert sum(step["drafts_kept"] for step in steps.values()) == drafts["accepted"]
    assert sum(step["drafted"] for step in steps.values()) == drafts["drafted"]
    after = drafting.figures()
    assert [after[name] - before[name] for name in names] == [drafts["drafted"], drafts["accepted"]]
    told = [after[f'byref_plugin_figure{{figure="{name}",plugin="spec_decoding"}}'] for name in ("drafted", "accepted")]
    assert told == [after[name] for name in names]


def test_a_request_may_do_without(drafting):
    answer = drafting.complete("a bird, a bird", max_tokens=30, temperature=0, plugins=OFF)
    assert answer.body["usage"]["drafts"] == {"drafted": 0, "accepted": 0}
    refused = drafting.complete(plugins={"spec_decoding": {"max_draft_tokens": -1}})
    assert (refused.status, refused.error["param"]) == (400, "plugins.spec_decoding.max_draft_tokens")
