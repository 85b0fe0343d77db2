"""The Python API: one prompt, many prompts, streams, conversations, plugins, and what a mistake costs."""

import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from engines import assert_idle, greedy
from rich.console import Console

from byref import LLM, Plugin, PluginInfo, SamplingParams, hookimpl
from byref.api.progress import Batch
from byref.api.settings import name_of
from byref.config import Config
from byref.contract.errors import ConfigError, EngineStopped, ModelError, PluginError, RequestError
from byref.contract.plugin import NoOptions
from byref.contract.requests import Reason
from byref.engine.interrupt import deferred

SETTINGS = {"dtype": "float32", "device": "cpu", "capture": "off", "threads": 1, "max_requests": 4, "max_rows": 64}
PROMPTS = ["one", "two three", [5, 6, 7], "four", "a longer prompt than the others", "six"]
TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tiny_llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llm") / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no') }}{% endif %}<turn>{{ m.content }}{% endfor %}"
    )
    return folder


@pytest.fixture(scope="module")
def shared(folder):
    with LLM(folder, **SETTINGS) as llm:
        yield llm


@pytest.fixture
def llm(shared):
    yield shared
    assert_idle(shared.engine)


def test_the_package_is_light_until_it_is_used():
    program = (
        "import sys, byref\nassert 'torch' not in sys.modules\nassert {'LLM', 'SamplingParams', 'Plugin'} <= set(dir(byref))\n"
        "from byref import SamplingParams\nassert 'torch' not in sys.modules\n"
        "from byref import LLM\nassert 'torch' in sys.modules\n"
        "try: byref.nothing\nexcept AttributeError as error: assert 'nothing' in str(error)\nelse: raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_completions_come_in_the_prompts_order(llm):
    together = llm.generate(PROMPTS, greedy(6))
    assert [done.token_ids for done in together] == [llm.generate(prompt, greedy(6))[0].token_ids for prompt in PROMPTS]
    assert together[2].prompt_ids == (5, 6, 7)
    assert [done.finished for done in together] == [Reason.LENGTH] * 6
    assert llm.generate([]) == []


def test_parameters_for_each(llm):
    done = llm.generate(["one", "two"], [greedy(2), greedy(5, logprobs=1)])
    assert [len(one.token_ids) for one in done] == [2, 5]
    assert [len(one.logprobs) for one in done] == [0, 5]
    assert done[1].timings.total >= done[1].timings.first_token > 0
    with pytest.raises(RequestError, match="1 sampling parameters for 2 prompts"):
        llm.generate(["one", "two"], [greedy(2)])


def test_parameters_as_tables(llm):
    one, other = llm.generate(["one", "two"], [{"max_tokens": 2, "ignore_eos": True}, greedy(3)])
    assert (len(one.token_ids), len(other.token_ids)) == (2, 3)
    assert len(llm.generate("one", {"max_tokens": 2, "ignore_eos": True})[0].token_ids) == 2
    assert "".join(chunk.text for chunk in llm.stream("one", {"max_tokens": 2, "ignore_eos": True})) == one.text


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: SamplingParams(temperature=-1),
        lambda llm: llm.generate("one", {"temperature": -1}),
        lambda llm: llm.generate(["one", "two"], [greedy(2), {"temperature": -1}]),
        lambda llm: list(llm.stream("one", {"temperature": -1})),
        lambda llm: llm.chat(TALK, {"temperature": -1}),
    ],
)
def test_a_wrong_parameter_is_one_sentence_that_names_it(llm, call):
    with pytest.raises(RequestError) as error:
        call(llm)
    sentence = "temperature: input should be greater than or equal to 0, got -1"
    assert str(error.value) == f"{sentence}\n  in: sampling parameters, field temperature\n  try: correct the value"


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate("one", temperature=1.0),
        lambda llm: llm.chat(TALK, temperature=1.0),
        lambda llm: list(llm.stream("one", temperature=1.0)),
    ],
)
def test_a_parameter_as_an_argument_of_its_own_is_named(llm, call):
    with pytest.raises(RequestError, match=r"temperature is a sampling parameter(?s:.*)SamplingParams\(temperature"):
        call(llm)


def test_choices(llm):
    (done,) = llm.generate("one", SamplingParams(max_tokens=5, n=3, temperature=1.0, seed=1, ignore_eos=True))
    assert len(done.choices) == 3
    assert len({choice.token_ids for choice in done.choices}) > 1


def test_a_stream_is_the_whole_in_pieces(llm):
    (whole,) = llm.generate("one", greedy(9))
    chunks = list(llm.stream("one", greedy(9)))
    assert len(chunks) == 9
    assert "".join(chunk.text for chunk in chunks) == whole.text == chunks[-1].completion.text
    assert [chunk.completion for chunk in chunks[:-1]] == [None] * 8


def test_leaving_a_stream_early_aborts_it(llm):
    stream = llm.stream("one", greedy(50))
    next(stream)
    stream.close()
    assert_idle(llm.engine)


def test_several_prompts_are_interleaved(llm):
    whole = [done.text for done in llm.generate(PROMPTS, greedy(7))]
    texts, order = [""] * len(PROMPTS), []
    for number, chunk in llm.stream_batch(PROMPTS, greedy(7)):
        texts[number] += chunk.text
        order.append(number)
    assert texts == whole
    assert {0, 1, 2, 3} <= set(order[:8])  # four run at once
    assert order != sorted(order)


def test_streams_of_one_model_do_not_take_from_each_other(llm):
    first, second = (done.text for done in llm.generate(["one", "two three"], greedy(8)))
    pairs = itertools.zip_longest(llm.stream("one", greedy(8)), llm.stream("two three", greedy(8)))
    pieces = [(a.text if a else "", b.text if b else "") for a, b in pairs]
    assert "".join(a for a, _ in pieces) == first
    assert "".join(b for _, b in pieces) == second
    open = llm.stream("one", greedy(8))
    begun = next(open).text
    assert llm.generate("two three", greedy(8))[0].text == second
    assert begun + "".join(chunk.text for chunk in open) == first


def test_chat_renders_and_generates(llm):
    (answer,) = llm.chat(TALK, greedy(5))
    assert answer.token_ids == llm.generate(llm.render(TALK), greedy(5))[0].token_ids
    assert [done.token_ids for done in llm.chat([TALK, TALK], greedy(5))] == [answer.token_ids] * 2
    with pytest.raises(RequestError, match="refuses the messages: no"):
        llm.chat([{"role": "bad", "content": ""}])


def test_a_refused_prompt_is_raised_and_ends_the_others(llm):
    with pytest.raises(RequestError, match="the prompt is empty"):
        llm.generate(["one", ""], greedy(5))
    assert_idle(llm.engine)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        list(llm.stream_batch(["one", [99999]], greedy(5)))


def test_or_is_returned_and_the_others_go_on(llm):
    one, empty, long = llm.generate(["one", "", [5] * 400], greedy(5), errors="return")
    assert len(one.token_ids) == 5
    assert (empty.finished, long.finished) == (Reason.FAILED, Reason.FAILED)
    assert "empty" in str(empty.error)
    assert "400 tokens" in str(long.error)
    assert long.prompt_ids == (5,) * 400


def test_a_stream_whose_request_was_aborted_elsewhere_ends(llm):
    stream = llm.stream("one", greedy(50), id="mine")
    next(stream)
    llm.engine.abort("mine")
    assert list(stream)[-1].finished is Reason.ABORTED


@pytest.mark.parametrize("several", [True, False])
def test_a_bar_on_terminals_only(llm, capsys, several):
    llm.generate(["one", "two"] if several else ["one"], greedy(2))
    assert capsys.readouterr() == ("", "")
    llm.generate(["one"], greedy(2), progress=True)
    assert "1/1" in capsys.readouterr().err


@pytest.mark.parametrize(("terminal", "total", "shown"), [(True, 2, True), (True, 1, False), (False, 2, False)])
def test_what_the_bar_says(terminal, total, shown):
    out = io.StringIO()
    with Batch(total, console=Console(file=out, force_terminal=terminal, width=100)) as batch:
        batch.count(5)
        batch.count(3, finished=True)
    assert (f"1/{total}" in out.getvalue()) is shown
    assert bool(out.getvalue()) is shown


class CountsSteps(Plugin[NoOptions]):
    info = PluginInfo(api_version=1)
    seen = 0

    @hookimpl
    def step_done(self, report):
        type(self).seen += 1


class FailsRequests(Plugin[NoOptions]):
    """Refuses requests of more than ten tokens when they are added."""

    info = PluginInfo(api_version=1)

    @hookimpl
    def request_added(self, request):
        if len(request.prompt) > 10:
            raise ValueError("too long for me")


class Breaks(Plugin[NoOptions]):
    info = PluginInfo(api_version=1)

    @hookimpl
    def prepare_step(self, step):
        if step.plan.windows and len(step.plan.windows) > 1:
            raise ZeroDivisionError("broken")


class PressesCtrlC(Plugin[NoOptions]):
    """In the middle of its third step."""

    info = PluginInfo(api_version=1)
    steps = done = 0

    @hookimpl
    def step_done(self, report):
        self.done += 1

    @hookimpl
    def prepare_step(self, step):
        self.steps += 1
        if self.steps == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_plugins_by_class_name_and_file(folder, tmp_path):
    file = tmp_path / "quiet.py"
    file.write_text(
        "from byref import Plugin, PluginInfo\nfrom byref.contract.plugin import NoOptions\n"
        "class Quiet(Plugin[NoOptions]):\n    info = PluginInfo(api_version=1)\n"
    )
    with LLM(folder, plugins=[CountsSteps, str(file), FailsRequests], **SETTINGS) as llm:
        names = [plugin.name for plugin in llm.engine.parts.host.plugins]
        assert names == ["models", "counts_steps", "quiet", "fails_requests"]
        llm.generate("one", greedy(3))
        assert CountsSteps.seen == 3
        with pytest.raises(RequestError, match="too long for me"):
            llm.generate(["one", [5] * 20], greedy(3))
        one, long = llm.generate(["one", [5] * 20], greedy(3), errors="return")
        assert (one.finished, long.finished) == (Reason.LENGTH, Reason.FAILED)
        assert_idle(llm.engine)


def test_mistakes_of_plugins(folder):
    with pytest.raises(ModelError, match="no enabled plugin knows the architecture"):
        LLM(folder, plugins=["no:models"], **SETTINGS)
    with pytest.raises(PluginError, match="there is no plugin 'nobody'"):
        LLM(folder, plugins=["nobody"], **SETTINGS)
    with pytest.raises(PluginError, match="unknown key 'x'"):
        LLM(folder, plugins=[CountsSteps], options={"counts_steps": {"x": 1}}, **SETTINGS)


def test_an_engine_that_stops_says_so_to_everybody(folder):
    with LLM(folder, plugins=[Breaks], **SETTINGS) as llm:
        with pytest.raises(EngineStopped, match="broken"):
            llm.generate(["one", "two"], greedy(3))
        with pytest.raises(EngineStopped, match="broken"):
            llm.generate("one")


def test_an_interrupt_waits_for_the_end_of_the_step(folder):
    (whole,) = LLM(folder, **SETTINGS).generate("one", greedy(6))
    with LLM(folder, plugins=[PressesCtrlC], **SETTINGS) as llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["one", "two"], greedy(6))
        plugin = llm.engine.parts.host.plugin("presses_ctrl_c").instance
        assert (plugin.steps, plugin.done) == (3, 3)
        assert_idle(llm.engine)
        assert llm.generate("one", greedy(6))[0].token_ids == whole.token_ids


def test_a_second_interrupt_does_not_wait():
    reached = []

    def impatient():
        with deferred():
            signal.raise_signal(signal.SIGINT)
            reached.append("held")
            signal.raise_signal(signal.SIGINT)
            reached.append("never")

    with pytest.raises(KeyboardInterrupt):
        impatient()
    assert reached == ["held"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_other_handlers_are_left_alone():
    seen = []

    def in_thread():
        with deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_after_close(folder):
    llm = LLM(folder, **SETTINGS)
    stream = llm.stream("one", greedy(50))
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(EngineStopped, match="closed"):
        llm.generate("one")
    assert list(stream)[-1].finished is Reason.ABORTED


def test_settings(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("byref.toml").write_text(f"[model]\npath = '{folder}'\n[engine]\nmax_context = 100\nmax_rows = 33\n")
    with LLM(**{**SETTINGS, "max_rows": 40}) as llm:
        engine = llm.engine.config.engine
        assert (engine.max_context, engine.max_rows, engine.max_requests) == (100, 40, 4)
    with LLM(config=llm.engine.config, plugins=[CountsSteps]) as again:
        assert again.engine.config == llm.engine.config


MISTAKES = [
    ({"max_row": 3}, r"no setting 'max_row'\n  in: LLM\(\.\.\.\)\n  try: did you mean 'max_rows'"),
    ({"path": "x"}, "no setting 'path'"),
    ({"max_rows": 0}, r"greater than or equal to 1, got 0\n  in: LLM\(\.\.\.\), field engine.max_rows"),
    ({"dtype": "int8"}, r"in: LLM\(\.\.\.\), field model.dtype"),
    ({"options": {"nobody": {"x": 1}}}, "options for 'nobody', and there is no such plugin"),
    ({"config": Config(), "max_rows": 3}, "a Config is complete"),
    ({"config": Config(), "plugins": ["x"]}, "a Config is complete"),
    ({"config": "none.toml"}, "no such configuration file"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[str(case[0]) for case in MISTAKES])
def test_a_wrong_argument_is_named(arguments, sentence):
    with pytest.raises((ConfigError, PluginError), match=sentence):
        LLM(**arguments)


def test_names_of_classes():
    names = [name_of(type(name, (Plugin,), {})) for name in ("Steps", "DraftTree", "KVCache", "LoRA2")]
    assert names == ["steps", "draft_tree", "kv_cache", "lo_ra2"]
