"""What a stream shows: whole characters (fault S13), no part of a stop string (fault S14), and the end of it."""

import pytest
from checkpoints import END
from scripts import Forced
from serving import serving

EURO, STOP = "€", "END"


@pytest.fixture(scope="module")
def forced(talker):
    """A server whose model says what a test scripts, by prompt."""
    with serving(talker, {"forced": Forced}) as server:
        yield server


def script(server, prompt, text):
    """Let the model answer `prompt` with `text`, one token for each byte, then end."""
    ids = [id for character in text for id in server.engine.tokenizer.encode(character)]
    plugin = server.engine.parts.host.plugin("forced").instance
    plugin.script = {**plugin.script, tuple(server.engine.tokenizer.encode(prompt)): [*ids, END]}


def both(server, prompt, **fields):
    """The text, whole and as its pieces."""
    whole = server.complete(prompt, max_tokens=100, **fields).body["choices"][0]
    with server.client() as client:
        events = client.completions.create(model="tiny", prompt=prompt, max_tokens=100, stream=True, **fields)
        pieces = [event.choices[0].text for event in events]
    return whole, pieces


def test_characters_of_several_tokens_are_shown_whole(forced):
    text = f"1 {EURO} and 🙂, {EURO}{EURO}"
    script(forced, "money", text)
    whole, pieces = both(forced, "money")
    assert whole["text"] == "".join(pieces) == text
    assert whole["finish_reason"] == "stop"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert EURO in pieces


@pytest.mark.parametrize(
    ("said", "shown", "reason"),
    [
        ("abcENDdef", "abc", "stop"),
        ("abcEN", "abcEN", "stop"),
        ("abENcENDd", "abENc", "stop"),
        ("EEND", "E", "stop"),
        (f"{EURO}END", EURO, "stop"),
    ],
)
def test_no_part_of_a_stop_string_is_shown_and_nothing_else_is_lost(forced, said, shown, reason):
    script(forced, f"said {said}", said)
    whole, pieces = both(forced, f"said {said}", stop=[STOP, "never"])
    assert whole["text"] == "".join(pieces) == shown
    assert whole["finish_reason"] == reason
    assert not any(piece.endswith(("EN", "E")) for piece in pieces[:-1] if not shown.startswith(piece))
    asked = {"prompt": f"said {said}", "max_tokens": 100, "stop": [STOP, "never"]}
    steps = {"stream": True, "stream_options": {"include_steps": True}}
    with forced.client() as client:
        events = list(client.completions.create(model="tiny", **asked, **steps))
    for event in events:
        assert "".join(text for text, _ in event.byref["pieces"]) == event.choices[0].text
    assert "".join(event.choices[0].text for event in events) == shown


def test_events_end_with_done(forced):
    answer = forced.ask("/v1/completions", {"prompt": "abc", "max_tokens": 2, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.rstrip().endswith("data: [DONE]")


def test_steps_show_what_the_engine_did(served):
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 6, "temperature": 0, "stream": True}
    with served.client() as client:
        events = list(client.completions.create(**body, stream_options={"include_steps": True}))
    pieces = [piece for event in events for piece in event.byref["pieces"]]
    assert "".join(text for text, _ in pieces) == "".join(event.choices[0].text for event in events)
    assert all(drafted is False for _, drafted in pieces)
    assert all(event.byref["step"]["seconds"] > 0 for event in events)
    numbers = [event.byref["step"]["number"] for event in events]
    assert numbers == sorted(set(numbers))


def test_a_stop_token_has_no_text_anywhere(forced):
    script(forced, "stopped", "abcd")
    (stop,) = forced.engine.tokenizer.encode("c")
    body = {"model": "tiny", "prompt": "stopped", "max_tokens": 9, "extra_body": {"stop_token_ids": [stop]}}
    with forced.client() as client:
        events = list(client.completions.create(**body, stream=True, stream_options={"include_steps": True}))
    assert "".join(event.choices[0].text for event in events) == "ab"
    assert [text for event in events for text, _ in event.byref["pieces"]] == ["a", "b"]
