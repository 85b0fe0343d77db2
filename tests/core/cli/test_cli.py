"""The command line: answers, sentences for mistakes, and what help may not import."""

import json
import subprocess
import sys

import pytest

from byref.cli.main import main


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BYREF_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def byref(capsys):
    """Runs a command in this process: (exit code, standard output, standard error)."""

    def run(*arguments):
        try:
            main(arguments)
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"], ["config", "show"], ["generate", "--help"]])
def test_light_commands_import_nothing_heavy(arguments):
    heavy = "('torch', 'transformers', 'byref.engine', 'byref_models')"
    program = (
        "import sys\nfrom byref.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"found = [name for name in {heavy} if name in sys.modules]\nassert not found, found"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_version(byref):
    code, out, _ = byref("--version")
    assert code == 0
    assert out.startswith("byref 0.")


def test_config_show_gives_values_and_origins(byref, here):
    (here / "byref.toml").write_text("[engine]\nmax_rows = 64\n")
    code, out, _ = byref("config", "show", "--set", "model.path=x", "-p", "a")
    assert code == 0
    lines = {
        line.split(" = ")[0]: [part.strip() for part in line.split(" = ")[1].split("#")] for line in out.splitlines()
    }
    assert lines["engine.max_rows"] == ["64", "byref.toml"]
    assert lines["model.path"] == ['"x"', "command line"]
    assert lines["plugins.enable"] == ['["models", "a"]', "command line"]
    assert lines["model.dtype"] == ['"auto"', "default"]
    _, out, _ = byref("config", "show", "--json")
    assert json.loads(out)["engine.max_rows"] == {"value": 64, "origin": "byref.toml"}


def test_plugins_info(byref):
    code, out, _ = byref("plugins", "info", "models", "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["status"] == "enabled"
    assert facts["entry point"] == "byref_models:Models"


def test_env(byref, here):
    code, out, _ = byref("env")
    assert code == 0
    facts = dict(line.split("  ", 1) for line in out.splitlines())
    assert {"byref", "python", "torch", "devices", "threads", "models", "plugins"} <= set(facts)
    assert str(here / "cache") in facts["models"]


def test_init_writes_a_file_once(byref, here):
    code, out, _ = byref("init", "smollm2")
    assert code == 0
    assert out == "wrote byref.toml; next: byref pull smollm2, then byref generate PROMPT\n"
    _, out, _ = byref("config", "show", "--json")
    shown = json.loads(out)
    assert shown["model.path"] == {"value": "smollm2", "origin": "byref.toml"}
    assert shown["plugins.enable"] == {"value": ["models"], "origin": "byref.toml"}
    code, _, err = byref("init", "smollm2")
    assert code == 1
    assert err.startswith("byref: byref.toml is there already")


MISTAKES = [
    (["init", "nothing-of-this-name"], 1, "byref: there is no model 'nothing-of-this-name'"),
    (["generate", ""], 1, "byref: the prompt is empty"),
    (["generate", "x"], 1, "byref: the model 'smollm2' has not been fetched yet"),
    (["generate", "x", "--model", "nothing.gguf"], 1, "byref: there is no model 'nothing.gguf'"),
    (
        ["generate", "x", "--top-p", "3"],
        1,
        "byref: top_p: input should be less than or equal to 1, got 3.0\n  in: --top-p",
    ),
    (["generate", "x", "--max-tokens", "0"], 1, "in: --max-tokens"),
    (["generate", "x", "--stop", ""], 1, "in: --stop"),
    (["generate", "x", "--dtype", "int8"], 1, "in: command line, field model.dtype"),
    (["generate", "x", "-p", "nobody"], 1, "byref: there is no plugin 'nobody'"),
    (["generate", "x", "--set", "engine.max_row=3"], 1, "try: did you mean 'max_rows'?"),
    (["generate", "x", "--set", "max_rows"], 1, "byref: --set max_rows names no value"),
    (["generate", "x", "--max-token", "3"], 2, "--max-tokens"),
    (["generate"], 2, "Missing argument"),
    (["generatee", "x"], 2, "Did you mean 'generate'?"),
    (["nonsense"], 2, "No such command 'nonsense'"),
    (["pull", "gpt-5"], 1, "byref: no model 'gpt-5' can be pulled"),
    (["plugins", "info", "model"], 1, "try: did you mean 'models'?"),
    (["config", "show", "--config", "none.toml"], 1, "byref: there is no such configuration file"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES, ids=[" ".join(case[0]) for case in MISTAKES])
def test_a_mistake_gets_a_sentence(byref, arguments, code, message):
    got, out, err = byref(*arguments)
    assert got == code
    assert message in err
    assert "Traceback" not in out + err


def test_debug_shows_the_traceback_wherever_it_stands(byref):
    for arguments in (["--debug", "generate", ""], ["generate", "", "--debug"]):
        code, _, err = byref(*arguments)
        assert code == 1
        assert "Traceback" in err


def test_an_unforeseen_error_is_no_bare_traceback(byref, monkeypatch):
    def fails(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("byref.cli.options.load_config", lambda *_, **__: fails())
    code, _, err = byref("config", "show")
    assert code == 1
    assert err.startswith("byref: ZeroDivisionError: division by zero\n  this is a mistake of byref's")
