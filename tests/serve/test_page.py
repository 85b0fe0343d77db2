"""The page at /, in a real browser: the answer as it comes, accepted drafts coloured, what the plugins did beside it."""

import json

import pytest
from browser import CHROMIUM, Browser
from serving import serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

QUESTION = "what is a bird, and what is none? " * 2 + "say!"
TALK = "[...document.querySelectorAll('.turn')].map((turn) => [turn.className, turn.textContent])"
IDLE = "document.body.dataset.busy === 'false'"


def ask(page, text, tokens=12):
    page.until(IDLE)
    fill = f"document.getElementById('text').value = {json.dumps(text)}; document.getElementById('tokens').value = {tokens};"
    page.run(f"{fill} document.getElementById('ask').requestSubmit()")
    page.until(IDLE)


def streamed(server, question, tokens):
    """The pieces of the same answer, as the server sends them: (text, whether a draft brought it)."""
    with server.client() as client:
        events = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": question}],
            max_tokens=tokens,
            temperature=0,
            stream=True,
            stream_options={"include_steps": True},
        )
        return [piece for event in events for piece in getattr(event, "byref", {}).get("pieces", ())]


def text(page, id):
    return page.run(f"document.getElementById({id!r}).textContent")


def test_a_conversation(served, tmp_path):
    with Browser(tmp_path / "profile", served.url) as page:
        ask(page, "<b>hello</b>")
        ask(page, "and again")
        turns = page.run(TALK)
        assert [kind for kind, _ in turns] == ["turn user", "turn assistant"] * 2
        assert turns[0][1] == "<b>hello</b>"
        expected = served.chat("<b>hello</b>", temperature=0, max_tokens=12).body["choices"][0]["message"]["content"]
        assert turns[1][1] == expected
        assert page.run("document.querySelector('.turn b')") is None
        assert text(page, "model") == "tiny"
        assert text(page, "drafts") == "none were made"
        assert text(page, "count").endswith("12 out")
        assert page.run("document.querySelectorAll('#steps i').length") == 12
        assert "12 steps" in text(page, "steptime")
    served.assert_idle()


def test_drafts_prefix_and_pages(talker, tmp_path):
    paged = pytest.importorskip("byref_paged_kv").PagedKVPlugin
    drafting = pytest.importorskip("byref_spec_decoding").SpecDecoding
    options = {"paged_kv": {"num_pages": 40}, "spec_decoding": {"drafter": "suffix", "adaptive": False}}
    plugins = {"paged_kv": paged, "spec_decoding": drafting}
    with serving(talker, plugins, options) as server, Browser(tmp_path / "profile", server.url) as page:
        for _ in range(2):
            ask(page, QUESTION, tokens=80)
            page.run("document.getElementById('reset').click()")
        ask(page, QUESTION, tokens=80)
        said = page.run("document.querySelector('.assistant').textContent")
        coloured = page.run("[...document.querySelectorAll('.assistant .draft')].map((span) => span.textContent)")
        assert "".join(coloured)
        assert len("".join(coloured)) < len(said)
        expected = streamed(server, QUESTION, tokens=80)
        assert said == "".join(piece for piece, _ in expected)
        assert "".join(coloured) == "".join(piece for piece, drafted in expected if drafted)
        assert "accepted" in text(page, "drafts")
        assert page.run("document.querySelectorAll('#steps i.drafted').length") > 0
        cached = int(text(page, "cached").split()[0])
        assert cached > 0
        assert page.run("document.getElementById('cachedbar').getBoundingClientRect().width") > 0
        assert page.run("document.querySelectorAll('#map i.cached').length") > 0
        assert page.run("document.querySelectorAll('#map i').length") == 40
        figures = server.engine.figures()["paged_kv"]
        for kind in ("used", "cached"):
            assert page.run(f"document.querySelectorAll('#map i.{kind}').length") == figures[f"{kind}_pages"]
        assert "spec_decoding" in text(page, "plugins")


def test_an_error_is_shown_and_the_conversation_goes_on(served, tmp_path):
    with Browser(tmp_path / "profile", served.url) as page:
        ask(page, "x" * 300)
        assert page.run(TALK)[-1][0] == "turn error"
        assert "256" in page.run(TALK)[-1][1]
        page.run("document.getElementById('reset').click()")
        ask(page, "hello")
        assert page.run(TALK)[-1][0] == "turn assistant"


def test_a_key_is_asked_for(talker, tmp_path):
    with serving(talker, api_keys=["sesame"]) as server, Browser(tmp_path / "profile", server.url) as page:
        page.until("!document.getElementById('keyed').hidden")
        page.run("document.getElementById('key').value = 'sesame'")
        ask(page, "hello")
        assert page.run(TALK)[-1][0] == "turn assistant"
