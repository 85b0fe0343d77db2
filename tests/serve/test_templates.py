"""Chat templates: the model's own, another one, none, one that knows no tools, and one that is up to no good."""

import pytest
from serving import serving

from byref.config import Config
from byref.contract import ConfigError
from byref.serve.app import create

TOOL = {"type": "function", "function": {"name": "a"}}


def test_a_model_without_a_template(short_llama):
    with serving(short_llama) as server:
        answer = server.chat("hello")
        assert (answer.status, answer.error["code"]) == (400, "no_chat_template")
        assert str(short_llama) not in answer.error["message"]
        assert server.complete("hello").status == 200


def test_another_template(talker, tmp_path):
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    with serving(talker, chat_template=str(template)) as server:
        length = len(server.engine.tokenizer.encode("[hello]", special=False))
        assert server.chat("hello").body["usage"]["prompt_tokens"] == length
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        several = server.chat(messages=[{"role": "user", "content": parts}])
        assert several.body["usage"]["prompt_tokens"] == length
        refused = server.chat("hello", tools=[TOOL])
        assert (refused.status, refused.error["param"]) == (400, "tools")
        assert "--chat-template" in refused.error["message"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception('no such turn') }}",
        "{{ messages[5].content.x.y }}",
        "{% for %}",
    ],
)
def test_a_template_that_fails_harms_nobody(talker, tmp_path, source):
    template = tmp_path / "mine.jinja"
    template.write_text(source)
    with serving(talker, chat_template=str(template)) as server:
        answer = server.chat("hello")
        assert answer.status == 400
        assert str(tmp_path) not in answer.error["message"]
        assert server.complete("hello").status == 200


def test_a_template_that_is_not_there(tmp_path):
    tables = {"serve": {"chat_template": str(tmp_path / "none.jinja")}}
    with pytest.raises(ConfigError, match="cannot be read"):
        create(Config.model_validate(tables))
