"""One-off plugins: a file has a name, can be left out by it, and its errors say which line to correct."""

import pytest

from byref.config import load_config
from byref.contract.errors import ConfigError, EngineStopped, PluginError, RequestError
from byref.contract.requests import SamplingParams
from byref.engine import Engine
from byref.plugins import PluginHost

SHORT = SamplingParams(max_tokens=2, ignore_eos=True)
HEAD = "from byref import API_VERSION, Plugin, PluginInfo, hookimpl\n\n\nclass Own(Plugin):\n"
INFO = "    info = PluginInfo(api_version=API_VERSION)\n\n    @hookimpl\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def file(name, body, head=HEAD + INFO):
        (tmp_path / name).write_text(head + body)
        return f"./{name}"

    return file


def config(*names, plugins=(), **tables):
    return load_config(overrides={"plugins": {"enable": list(names), **tables}}, environ={}, plugins=plugins)


@pytest.mark.parametrize("edit", ["no:own", "no:./own.py"])
def test_it_is_left_out_by_its_name_or_its_path_with_its_options(write, edit):
    path = write("own.py", "    def step_done(self, report): ...\n")
    settings = config("models", path, own={"every": 8}, plugins=[edit])
    assert settings.plugins.enable == ("models",)
    assert [plugin.name for plugin in PluginHost.load(settings).plugins] == ["models"]


def test_options_for_nobody_name_what_there_is_once(write):
    with pytest.raises(ConfigError, match="options for 'owm'") as error:
        PluginHost.load(config("models", write("own.py", "    def step_done(self, report): ...\n"), owm={"every": 8}))
    assert error.value.hint == "did you mean 'own'?"
    with pytest.raises(ConfigError) as error:
        PluginHost.load(config("models", zzz={"every": 8}))
    assert error.value.hint.count("models") == 1


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        ("import nobody\n", "", ["No module named 'nobody'", "line 1", "correct own.py"]),
        (HEAD, "    pass\n", ["Own has no `info` of type PluginInfo"]),
        (HEAD, "    info = PluginInfo(api_version=99)\n", ["version 99", "write it for version 1"]),
        (HEAD, "    info = PluginInfo(api_version=1, requires=('nobody',))\n", ["requires nobody", "install a plugin"]),
        (HEAD, "    info = PluginInfo(api_version=1, requires=('paged_kv',))\n", ["try: enable paged_kv"]),
        (HEAD + INFO, "    def register(self, registry): registry.x()\n", ["line 8", "correct own.py", "--debug"]),
        ("x = 1\n", "", ["defines 0 plugins", "derived from byref.Plugin"]),
    ],
)
def test_what_is_wrong_in_the_file_is_named_with_what_to_do(write, head, body, said):
    with pytest.raises(PluginError) as error:
        PluginHost.load(config("models", write("own.py", body, head)))
    assert "own.py" in error.value.where
    for part in said:
        assert part in str(error.value)


@pytest.fixture
def running(write, tiny_llama):
    def start(body):
        path, engine = write("own.py", body), {"max_requests": 2, "max_rows": 16, "threads": 1, "capture": "off"}
        model = {"path": str(tiny_llama), "dtype": "float32", "device": "cpu"}
        enable = {"enable": ["models", path]}
        values = {"model": model, "engine": engine, "plugins": enable}
        return Engine.start(load_config(overrides=values, environ={}))

    return start


def test_a_call_that_it_wrapped_and_that_raises_is_its_own_error(running):
    with pytest.raises(PluginError, match="own failed: ZeroDivisionError") as error:
        running("    def decorate(self, spec, call):\n        return lambda *a, **k: 1 / 0\n")
    assert "own.py line 9" in error.value.where
    assert error.value.hint.startswith("correct own.py, or run without it: -p no:own")


def test_an_error_that_core_raised_is_not_laid_at_its_door(running):
    """Though it was on the way: who is to blame for what core was called with, nobody can know."""
    with pytest.raises((TypeError, AttributeError)):
        running("    def decorate(self, spec, call):\n        return lambda *a, **k: call(None)\n")


def test_a_stopped_engine_says_which_line_and_what_to_do(running):
    with running("    def step_done(self, report):\n        1 / 0\n") as engine:
        with pytest.raises(EngineStopped, match="own failed in step_done") as error:
            list(engine.stream("a", SHORT))
        assert "hook step_done" in error.value.where
        assert "own.py line 9" in error.value.where
        assert error.value.hint.startswith("correct own.py")


def test_options_of_a_request_for_one_that_takes_none_say_who_takes_some(running):
    with running("    def step_done(self, report): ...\n") as engine:
        with pytest.raises(RequestError, match="'paged_kv' is not enabled") as error:
            engine.add("a", SHORT, options={"paged_kv": {}})
        assert error.value.hint == "send the request without; no enabled plugin takes options"
