"""A file of requests: results, resuming, and one line for each that is wrong."""

import json

import pytest

REQUESTS = [
    {"id": "a", "prompt": "one two", "max_tokens": 5, "ignore_eos": True},
    {"id": 7, "prompt": [3, 4, 5], "max_tokens": 3, "ignore_eos": True, "logprobs": 1},
    {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True},
    {"id": "d", "prompt": "many", "n": 2, "temperature": 1.0, "seed": 3, "ignore_eos": True},
]


@pytest.fixture
def files(here, configured):
    """Writes requests (objects or raw lines): (their file, the results')."""

    def write(requests):
        lines = [one if isinstance(one, str) else json.dumps(one) for one in requests]
        (here / "in.jsonl").write_text("\n".join(lines) + "\n")
        return "in.jsonl", "out.jsonl"

    return write


def results(here):
    return {one["id"]: one for one in map(json.loads, (here / "out.jsonl").read_text().splitlines())}


def test_every_request_is_answered(byref, files, here):
    code, out, err = byref("batch", *files(REQUESTS), "--max-tokens", "4")
    assert (code, out, err) == (0, "", "")
    found = results(here)
    assert found.keys() == {"a", 7, 3, "d"}
    assert [len(found[id]["token_ids"]) for id in ("a", 7, 3, "d")] == [5, 3, 4, 4]
    assert found["a"]["finish_reason"] == "length"
    assert found["a"]["usage"] == {"prompt_tokens": 6, "completion_tokens": 5, "cached_tokens": 0}
    assert len(found[7]["logprobs"]) == 3
    assert found["d"]["usage"]["completion_tokens"] == 8
    assert found["d"]["others"][0]["token_ids"] != found["d"]["token_ids"]


def test_finished_requests_are_not_done_again(byref, files, here):
    byref("batch", *files(REQUESTS))
    whole = (here / "out.jsonl").read_text()
    first, second, *_ = whole.splitlines(keepends=True)
    (here / "out.jsonl").write_text(first.replace('"text"', '"kept": true, "text"') + second[: len(second) // 2])
    code, _, err = byref("batch", *files(REQUESTS))
    assert (code, err) == (0, "")
    found = results(here)
    assert found[json.loads(first)["id"]]["kept"]
    assert {id: one["token_ids"] for id, one in found.items()} == {
        one["id"]: one["token_ids"] for one in map(json.loads, whole.splitlines())
    }


def test_an_interruption_keeps_what_was_finished(byref, files, here, configured):
    requests = [{"id": i, "prompt": f"p{i}", "max_tokens": 2 + 3 * i, "ignore_eos": True} for i in range(6)]
    byref("batch", *files(requests))
    expected = {id: one["token_ids"] for id, one in results(here).items()}
    (here / "out.jsonl").unlink()
    code, _, err = byref("batch", *files(requests), "-p", configured(12))
    assert code == 130
    assert "what was finished is kept" in err
    assert 0 < len(results(here)) < 6
    code, _, _ = byref("batch", *files(requests))
    assert code == 0
    assert {id: one["token_ids"] for id, one in results(here).items()} == expected


WRONG = [
    (
        {"id": "x", "prompt": "p", "temperature": -1},
        "field temperature: input should be greater than or equal to 0, got -1",
    ),
    (
        {"id": "x", "prompt": "p", "max_token": 3},
        "field max_token: unknown field 'max_token' (did you mean 'max_tokens'?)",
    ),
    ({"id": "x", "promt": "p"}, "field promt: unknown field 'promt' (did you mean 'prompt'?)"),
    ({"id": "x", "prompt": "p", "messages": []}, "field prompt: the request needs a prompt or messages, and not both"),
    ({"id": "x"}, "field prompt: the request needs a prompt or messages, and not both"),
    ({"id": 1.5, "prompt": "p"}, "field id: is a text or an integer, not 1.5"),
    ({"id": "good", "prompt": "p"}, "field id: an earlier line has the id 'good' (give each its own)"),
    ({"id": "x0", "prompt": ""}, "the prompt is empty (give at least one token)"),
    ({"id": "x", "prompt": [1, -1]}, "field prompt: is a text, or a list of token ids"),
    ({"id": [], "prompt": 1}, "2 values are wrong"),
    ({"id": "x1", "prompt": [9999]}, "token id 9999"),
    ({"id": "x2", "prompt": [5] * 300}, "300 tokens"),
    ({"id": "x3", "prompt": "p", "plugins": {"nobody": {}}}, "the plugin 'nobody' is not enabled"),
    ("{", "the line is not JSON"),
    ("[1]", "the line is no JSON object"),
]


def test_each_wrong_request_gets_a_line_and_the_others_go_on(byref, files, here):
    good = {"id": "good", "prompt": "p", "max_tokens": 2}
    code, _, err = byref("batch", *files([good, *(request for request, _ in WRONG)]))
    assert code == 1
    assert results(here).keys() == {"good"}
    told = {line.split(":")[0].split(",")[1]: line for line in err.splitlines() if line.startswith("in.jsonl")}
    assert len(told) == len(WRONG)
    for number, (_, sentence) in enumerate(WRONG, start=2):
        line = told[f" line {number}"]
        assert line.startswith(f"in.jsonl, line {number}")
        assert sentence in line
    assert err.splitlines()[len(WRONG)].endswith(
        f"{len(WRONG)} of {len(WRONG) + 1} requests failed, each with a line above"
    )


@pytest.mark.parametrize("content", ["notes\n", "notes", '{"no": 1}\n', '{"prompt": "x"}'])
def test_a_file_of_something_else_stays_as_it_is(byref, files, here, content):
    (here / "out.jsonl").write_text(content)
    code, _, err = byref("batch", *files(REQUESTS))
    assert code == 1
    assert "this is no result of byref batch\n  in: out.jsonl, line 1" in err
    assert (here / "out.jsonl").read_text() == content
