"""The benchmark: what it counts, and its picture."""

import json

import pytest

SMALL = [
    "bench",
    "--requests",
    "3",
    "--prompt-tokens",
    "5",
    "--max-tokens",
    "4",
    "--concurrency",
    "1",
    "--concurrency",
    "2",
]


def test_it_counts_requests_and_tokens(byref, configured, here):
    code, out, _ = byref(*SMALL, "--json")
    assert code == 0
    one, two = json.loads(out)
    assert (one["concurrency"], two["concurrency"]) == (1, 2)
    for level in (one, two):
        assert (level["requests"], level["prompt_tokens"], level["new_tokens"]) == (3, 15, 12)
        assert (len(level["first"]), len(level["gaps"]), len(level["total"])) == (3, 9, 3)
        assert all(first < whole for first, whole in zip(sorted(level["first"]), sorted(level["total"]), strict=True))
    assert (here / "byref-bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_table(byref, configured, here):
    code, out, err = byref(*SMALL, "--picture", "other.svg")
    assert code == 0
    assert err == "picture: other.svg\n"
    assert "<svg" in (here / "other.svg").read_text()
    rows = {line.split("  ")[1]: line for line in out.splitlines() if line.startswith("  ")}
    assert {"new tokens/s", "first token, ms", "whole request, s"} <= {name.strip() for name in rows}
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("arguments", [["--no-picture"], []])
def test_no_picture(byref, configured, here, monkeypatch, arguments):
    monkeypatch.setattr("byref.cli.bench.find_spec", lambda _: None)
    code, _, err = byref(*SMALL, *arguments)
    assert code == 0
    assert list(here.glob("*.png")) == []
    assert ("matplotlib is not installed" in err) is (arguments == [])


def test_what_does_not_fit(byref, configured):
    code, _, err = byref("bench", "--prompt-tokens", "250", "--max-tokens", "10", "--concurrency", "1")
    assert code == 1
    assert "250 prompt tokens and 10 new ones do not fit into 256" in err
