"""A conversation: its commands, an interrupted answer, and a real terminal."""

import json
import os
import pty
import select
import subprocess
import sys
from types import SimpleNamespace

import pytest

from byref.api import LLM
from byref.cli import chat
from byref.cli.session import Leave, Session
from byref.contract.errors import ModelError, RequestError
from byref.contract.requests import SamplingParams

SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(talker):
    with LLM(talker, dtype="float32", device="cpu", capture="off", threads=1, max_requests=4, max_rows=64) as llm:
        yield llm


@pytest.fixture
def session(llm):
    return Session(llm, SHORT)


def say(session, text):
    return "".join(chunk.text for chunk in session.answer(text))


def test_answers_are_part_of_what_follows(session, llm):
    first = say(session, "one")
    (expected,) = llm.chat([{"role": "user", "content": "one"}], SHORT)
    assert first == expected.text
    second = say(session, "two")
    assert [turn["content"] for turn in session.turns] == ["one", first, "two", second]
    assert second == llm.chat(session.turns[:3], SHORT)[0].text


def test_reset_and_system(session, llm):
    say(session, "one")
    assert session.command("/system") == "(no system message)"
    assert session.command("/system Be brief.") == "system: Be brief."
    assert session.command("/reset") == "forgotten"
    assert session.messages == [{"role": "system", "content": "Be brief."}]
    assert say(session, "x") == llm.chat([*session.messages[:1], {"role": "user", "content": "x"}], SHORT)[0].text


def test_save_and_load(session, llm, here):
    session.command("/system S")
    say(session, "one")
    assert session.command("/save talk.json") == "3 messages in talk.json"
    assert json.loads((here / "talk.json").read_text()) == session.messages
    other = Session(llm, SHORT)
    assert other.command("/load talk.json") == "3 messages from talk.json"
    assert other.messages == session.messages


def test_set(session):
    assert session.command("/set max_tokens 2") == "max_tokens = 2"
    assert session.command("/set temperature=0.5") == "temperature = 0.5"
    assert session.command('/set stop ["x", "y"]') == 'stop = ["x", "y"]'
    assert "max_tokens = 2\n" in session.command("/set")
    say(session, "one")
    assert session.command("/set max_tokens 3") == "max_tokens = 3"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/sve x", r"no command /sve\n  try: did you mean '/save'\?"),
        ("/", "there is no command /"),
        ("/set temperature hot", r"input should be a valid number, got 'hot'\n  in: /set temperature"),
        ("/set temprature 1", r"did you mean 'temperature'\?"),
        ("/set temperature", "gives no parameter a value"),
        ("/set n 2", "goes on from one answer|would all be the same"),
        ("/save", "no file was named"),
        ("/save missing/folder/x.json", "cannot be written: No such file"),
        ("/load missing.json", "cannot be read: No such file"),
        ("/load byref.toml", "holds no conversation"),
    ],
)
def test_a_mistake_changes_nothing(session, configured, line, sentence):
    before = session.command("/set")
    with pytest.raises(RequestError, match=sentence):
        session.command(line)
    assert session.command("/set") == before


def test_quit_and_help(session):
    with pytest.raises(Leave):
        session.command("/quit")
    shown = session.command("/help")
    assert all(word in shown for word in session.words() if word != "/help")


def test_what_cannot_be_answered_is_forgotten(session):
    say(session, "one")
    with pytest.raises(RequestError, match=r"the prompt has .* tokens(.|\n)*/reset forgets"):
        say(session, "x" * 300)
    assert len(session.turns) == 2


def test_an_answer_that_fails_half_way_is_forgotten(llm, monkeypatch):
    def fails(prompt, params):
        yield from llm.stream(prompt, SamplingParams(max_tokens=2, ignore_eos=True))
        raise RequestError("no more")

    session = Session(SimpleNamespace(render=llm.render, stream=fails), SHORT)
    with pytest.raises(RequestError, match=r"no more\n  try: /reset forgets"):
        say(session, "one")
    assert session.turns == []


def test_leaving_an_answer_keeps_what_was_said(session, llm):
    answer = session.answer("one")
    said = next(answer).text + next(answer).text
    answer.close()
    assert session.turns[-1] == {"role": "assistant", "content": said}
    assert llm.engine.idle


def test_a_model_without_a_template(tiny_llama):
    with (
        LLM(tiny_llama, dtype="float32", device="cpu", capture="off", threads=1) as plain,
        pytest.raises(ModelError, match=r"no chat template\n.*\n.*byref generate"),
    ):
        Session(plain, SHORT).check()


def test_ctrl_c_stops_the_answer_and_not_the_program(byref, configured, monkeypatch):
    lines = iter(["one", "//two"])

    def read(_):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("byref.cli.editing.read", read)
    code, out, err = byref(
        "chat", "--max-tokens", "20", "--seed", "0", "--param", "ignore_eos=true", "-p", configured(5)
    )
    assert code == 0
    assert err == ""
    assert out.count("(stopped)") == 1
    first, second = out.split(" (stopped)\n")
    assert first
    assert len(second.strip("\n")) > 5


def test_a_line_that_ends_in_a_backslash_goes_on(monkeypatch):
    lines = iter(["a\\", "b", "  ", KeyboardInterrupt, "c\\", KeyboardInterrupt, "d", EOFError])

    def read(_):
        line = next(lines)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("byref.cli.editing.read", read)
    assert list(chat._lines()) == ["a\nb", "d"]


class Terminal:
    """`byref` with a terminal of its own, until it ends."""

    def __init__(self, *arguments):
        self._leader, follower = pty.openpty()
        command = [sys.executable, "-c", f"from byref.cli.main import main; main({list(arguments)!r})"]
        environment = {**os.environ, "TERM": "dumb", "INPUTRC": "/dev/null"}
        self._process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower, env=environment, start_new_session=True
        )
        os.close(follower)
        self.screen = ""

    def until(self, text):
        """Read until `text` is on the screen; what came since the last call."""
        while text not in self.screen:
            ready, _, _ = select.select([self._leader], [], [], 120)
            assert ready, f"{text!r} does not come: {self.screen!r}"
            try:
                self.screen += os.read(self._leader, 4096).decode()
            except OSError as end:  # the program ended
                raise AssertionError(f"ended without {text!r}: {self.screen!r}") from end
        seen, _, self.screen = self.screen.partition(text)
        return seen

    def type(self, keys):
        os.write(self._leader, keys.encode())

    def end(self):
        code = self._process.wait(120)
        os.close(self._leader)
        return code


def test_on_a_terminal(configured, here):
    terminal = Terminal("chat", "--max-tokens", "3", "--param", "ignore_eos=true")
    terminal.until("type a message, or /help.")
    terminal.until("\r\n> ")
    terminal.type("helo\x02l\n")  # Ctrl-B goes back by one character
    terminal.until("\r\n> ")
    terminal.type("/sy\t Be brief.\n")
    terminal.until("system: Be brief.")
    terminal.until("\r\n> ")
    terminal.type("/save talk.json\n")
    terminal.until("3 messages in talk.json")
    terminal.until("\r\n> ")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    system, user, assistant = json.loads((here / "talk.json").read_text())
    assert system["content"] == "Be brief."
    assert user["content"] == "hello"
    assert assistant["role"] == "assistant"
    kept = (here / "cache" / "chat_history").read_text().splitlines()
    assert kept[-4:] == ["hello", "/system Be brief.", "/save talk.json", "/quit"]
