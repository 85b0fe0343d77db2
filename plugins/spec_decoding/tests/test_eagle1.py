"""EAGLE-1 and EAGLE-2 heads, in the layout of their authors, against a layer of transformers."""

from __future__ import annotations

import json

import pytest
import torch
from engines import start
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from byref.contract import SamplingParams

PROMPTS = [[5, 9, 77, 3, 2, 8], [100, 2, 3, 40, 5, 6, 70, 8, 9, 10, 11], [7, 7, 7]]


@pytest.fixture(scope="module")
def head(tmp_path_factory, tiny_llama):
    """(folder, layer, projection): a random head for the tiny Llama, whose embedding and projection it uses."""
    target = AutoModelForCausalLM.from_pretrained(tiny_llama)
    torch.manual_seed(3)
    layer, join = (
        LlamaDecoderLayer(target.config, 0),
        torch.nn.Linear(2 * target.config.hidden_size, target.config.hidden_size),
    )
    layer.input_layernorm = torch.nn.Identity()
    for parameter in (*layer.parameters(), *join.parameters()):
        torch.nn.init.normal_(parameter, std=0.2)
    folder = tmp_path_factory.mktemp("eagle")
    config = target.config.to_dict() | {"num_hidden_layers": 1, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {f"layers.0.{name}": value for name, value in layer.state_dict().items()}
    save_file(
        tensors | {f"fc.{name}": value for name, value in join.state_dict().items()}, folder / "model.safetensors"
    )
    return folder, layer.eval(), join, target


@torch.no_grad()
def first_drafts(head, text: list[int]) -> list[int]:
    """Row t: the draft of token t + 2."""
    _, layer, join, target = head
    ids = torch.tensor([text])
    hidden = target.model(ids).last_hidden_state[:, :-1]
    x = join(torch.cat((target.model.embed_tokens(ids[:, 1:]), hidden), -1))
    rows = torch.arange(x.shape[1])[None]
    mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)[None, None]
    turned = LlamaRotaryEmbedding(target.config)(x, rows)
    return target.lm_head(layer(x, attention_mask=mask, position_embeddings=turned)).argmax(-1)[0].tolist()


def test_first_drafts_are_those_of_the_published_head(tiny_llama, head, monkeypatch):
    from byref_spec_decoding.fed import FedDrafter

    seen, propose = {}, FedDrafter.propose

    def noted(self, round):
        drafts = propose(self, round)
        for want in round.wants:
            if want.most:
                seen[want.request.prompt, len(want.request.tokens)] = drafts[want.request.id].tokens[0]
        return drafts

    monkeypatch.setattr(FedDrafter, "propose", noted)
    options = {"model": str(head[0]), "version": 1}
    table = {"drafter": "eagle", "adaptive": False, "max_draft_tokens": 2, "options": options}
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    with start(tiny_llama, options={"enable": ["models"]}) as engine:
        plain = [one.token_ids for one in engine.generate(PROMPTS, params)]
    with start(tiny_llama, options={"enable": ["models", "spec_decoding"], "spec_decoding": table}) as engine:
        assert [one.token_ids for one in engine.generate(PROMPTS, params)] == plain
    assert len(seen) > 40
    for prompt, more in zip(PROMPTS, plain, strict=True):
        expected = first_drafts(head, [*prompt, *more])
        for known in range(len(prompt) + 1, len(prompt) + len(more)):
            if (tuple(prompt), known) in seen:
                assert seen[tuple(prompt), known] == expected[known - 2]
