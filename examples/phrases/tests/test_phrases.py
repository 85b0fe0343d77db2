"""A phrase that comes is guessed, one that does not costs nothing, and the output stays what it is."""

from __future__ import annotations

import string

import pytest
from byref_phrases import PhrasesPlugin
from checkpoints import byte_level
from engines import assert_idle, greedy, start, together

from byref.contract import ConfigError

PROMPTS = [[5, 6, 7], [8, 9, 10, 11]]
LETTERS = [byte_level().token_to_id(letter) for letter in string.ascii_lowercase]
PARAMS = greedy(24, allowed_token_ids=LETTERS)
"""Letters alone, so that what was generated is a text that gives the same tokens again."""


def drafting(path, **options):
    table = {"drafter": "phrases", "adaptive": False, "options": options}
    return start(path, {"phrases": PhrasesPlugin}, {"enable": ["models", "spec_decoding"], "spec_decoding": table})


@pytest.fixture(scope="module")
def plain(short_llama):
    with start(short_llama) as engine:
        return together(engine, PROMPTS, PARAMS)


@pytest.mark.parametrize(("begin", "least"), [(1, 4), (3, 12)])
def test_a_phrase_that_comes_is_drafted_and_stays(short_llama, plain, begin, least):
    with drafting(short_llama, phrases=[plain[0].text, plain[1].text], begin=begin) as engine:
        done = together(engine, PROMPTS, PARAMS)
        assert [one.token_ids for one in done] == [one.token_ids for one in plain]
        assert done[0].drafts.accepted >= least
        assert_idle(engine)


def test_a_phrase_that_never_comes_is_never_drafted(short_llama, plain):
    with drafting(short_llama, phrases=["0123456789"]) as engine:
        done = together(engine, PROMPTS, PARAMS)
        assert [one.token_ids for one in done] == [one.token_ids for one in plain]
        assert engine.figures()["spec_decoding"]["drafted"] == 0


def test_the_phrases_have_to_be_given(short_llama):
    with pytest.raises(ConfigError, match="phrases: field required"):
        drafting(short_llama)
