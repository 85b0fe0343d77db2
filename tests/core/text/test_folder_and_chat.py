"""Tokenizers and chat templates of Hugging Face folders."""

import json

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from byref.contract.errors import ModelError, RequestError
from byref.text.from_folder import end_ids, tokenizer_from_folder

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]


@pytest.fixture(scope="session")
def library(tools):
    tokens = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "unk_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=tools.trained("smollm"), chat_template=tools.template, **tokens)


@pytest.fixture
def folder(tmp_path, library):
    library.save_pretrained(tmp_path)
    return tmp_path


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_it_is_what_transformers_loads(folder, tools):
    expected, found = AutoTokenizer.from_pretrained(folder), tokenizer_from_folder(folder)
    assert found.size == len(expected)
    assert found.special_ids == set(expected.all_special_ids)
    for text in [*tools.texts, "<|im_start|>x<|im_end|>"]:
        ids = found.encode(text)
        assert ids == expected.encode(text)
        assert found.decode(ids) == expected.decode(ids, skip_special_tokens=True)


def test_end_ids(folder):
    assert end_ids(folder) == {2}
    (folder / "tokenizer_config.json").unlink()
    assert end_ids(folder) == set()


@pytest.mark.parametrize("more", [True, False])
def test_a_chat_is_rendered_as_transformers_does(folder, library, more):
    expected = library.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=more)
    assert "<|im_end|>" in expected
    assert tokenizer_from_folder(folder).chat(MESSAGES, add_generation_prompt=more) == expected


@pytest.mark.parametrize("place", ["settings", "named"])
def test_other_places_of_a_template(folder, tools, place):
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": tools.template}, {"name": "rag", "template": "x"}]
    change(folder / "tokenizer_config.json", chat_template=tools.template if place == "settings" else named)
    assert tokenizer_from_folder(folder).chat(MESSAGES[:1]).startswith("<|im_start|>user\nhi<|im_end|>")


def test_no_template(folder):
    (folder / "chat_template.jinja").unlink()
    found = tokenizer_from_folder(folder)
    assert not found.has_chat_template
    with pytest.raises(ModelError, match="no chat template"):
        found.chat(MESSAGES)


def test_a_template_that_refuses(folder):
    with pytest.raises(RequestError, match="the chat template refuses the messages: no such role"):
        tokenizer_from_folder(folder).chat([{"role": "refused", "content": "x"}])


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_is_sandboxed(folder, template):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(RequestError, match=r"unsafe|safely"):
        tokenizer_from_folder(folder).chat(MESSAGES)


def test_a_broken_template(folder):
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelError, match="the chat template cannot be read"):
        tokenizer_from_folder(folder).chat(MESSAGES)


def test_no_tokenizer(tmp_path):
    with pytest.raises(ModelError, match="carries no tokenizer that can be read"):
        tokenizer_from_folder(tmp_path)


def test_settings_that_are_no_json(folder):
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is not JSON"):
        tokenizer_from_folder(folder)


def test_a_broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        tokenizer_from_folder(folder)
