"""Heads and vocabularies: tied or not as the configuration says, and never a token of the padding."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoints import VOCABULARY
from engines import greedy, start
from equality import TransformersOracle, assert_equal
from families import save_family
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from byref.contract import SamplingParams
from byref.contract.errors import ModelError

PROMPT = [5, 9, 200, 41, 7]
PADDED = 384


def edit(folder, head: str, tied: bool):
    """Keep a head that is `equal` to the embedding, an `other` one or `none`, and say whether they are tied."""
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    tensors.pop("lm_head.weight", None)
    if head != "none":
        tensors["lm_head.weight"] = embedding.clone() if head == "equal" else torch.randn_like(embedding) * 0.2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    return folder


@pytest.mark.parametrize("family", ["Llama", "Gemma 3"])
@pytest.mark.parametrize(
    ("head", "tied"), [("none", True), ("equal", True), ("equal", False), ("other", False)], ids=str
)
def test_the_head_follows_the_configuration(tmp_path, family, head, tied):
    edit(save_family(tmp_path, family), head, tied)
    oracle = TransformersOracle(AutoModelForCausalLM.from_pretrained(tmp_path))
    with start(tmp_path) as engine:
        assert_equal(engine, oracle, [PROMPT], 8)


def test_a_missing_head_is_named_where_it_is_not_tied(tmp_path):
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        start(edit(save_family(tmp_path, "Llama"), "none", False))


def test_a_head_that_contradicts_the_tie_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"lm_head\.weight.*differs.*embed_tokens"):
        start(edit(save_family(tmp_path, "Llama"), "other", True))


@pytest.fixture
def padded(tmp_path):
    """A model with rows beyond its tokenizer, every one of which is likelier than all tokens."""
    save_family(tmp_path, "Qwen2", vocab_size=PADDED)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"][VOCABULARY:] = tensors["lm_head.weight"][:64] * 3
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def test_padding_is_never_sampled(padded):
    model = AutoModelForCausalLM.from_pretrained(padded)
    with torch.inference_mode():
        assert int(model(torch.tensor([PROMPT])).logits[0, -1].argmax()) >= VOCABULARY
    with start(padded) as engine:
        ways = [greedy(24), SamplingParams(max_tokens=24, temperature=2.0, seed=1, ignore_eos=True)]
        for params in ways:
            (completion,) = engine.generate([PROMPT], params)
            assert max(completion.token_ids) < VOCABULARY


def test_padding_does_not_count_in_log_probabilities(padded):
    model = AutoModelForCausalLM.from_pretrained(padded)
    with start(padded) as engine, torch.inference_mode():
        (completion,) = engine.generate([PROMPT], greedy(1, prompt_logprobs=1))
        expected = model(torch.tensor([PROMPT])).logits[0, :-1, :VOCABULARY].log_softmax(-1)
        for row, found, token in zip(expected, completion.prompt_logprobs[1:], PROMPT[1:], strict=True):
            assert found[token] == pytest.approx(float(row[token]), abs=1e-4)


def test_an_id_of_the_padding_is_refused(padded):
    with start(padded) as engine, pytest.raises(Exception, match=str(VOCABULARY)):
        engine.add([VOCABULARY + 1])
