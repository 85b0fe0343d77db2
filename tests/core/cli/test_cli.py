"""The command line: answers, sentences for mistakes, and what help may not import."""

import json
import os
import subprocess
import sys

import pytest

from byref.cli.bound import spans

HELP = [[command, "--help"] for command in ("generate", "chat", "batch", "bench", "models", "pull", "init", "env")]


@pytest.mark.parametrize(
    "arguments", [["--help"], *HELP, ["plugins", "list"], ["config", "show"], ["models"]], ids=" ".join
)
def test_light_commands_import_nothing_heavy(arguments):
    heavy = "('torch', 'transformers', 'byref.engine', 'byref_models')"
    plugins = " - {'byref_models'}" if arguments == ["models"] else ""  # it asks the enabled ones
    program = (
        "import sys\nfrom byref.cli.main import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        f"found = ({{name for name in {heavy} if name in sys.modules}}{plugins})\nassert not found, found"
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


def test_plugins_list_says_who_answers_which_layers(byref, configured):
    code, out, _ = byref("plugins", "list", "--bound", "--json")
    assert code == 0
    bound = {one["asked for"]: one for one in json.loads(out)["bound"]}
    attention = bound["AttentionSpec"]
    assert (attention["role"], attention["layers"], attention["by"]) == ("target", "0-3", "core")
    assert attention["how"].startswith("gather: ")
    assert bound["RowSpec"]["layers"] == "-"
    assert all(one["how"] for one in bound.values())
    code, out, _ = byref("plugins", "list", "--bound")
    assert "AttentionSpec" in out


@pytest.mark.parametrize(
    ("layers", "said"), [({-1}, "-"), ({3}, "3"), ({0, 1, 2}, "0-2"), ({-1, 0, 2, 3, 5, 7, 8, 9}, "0, 2-3, 5, 7-9")]
)
def test_layers_are_said_in_spans(layers, said):
    assert spans(layers) == said


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
    (["generate", "x", "--param", "top_q=1"], 1, "in: --param top_q\n  try: did you mean 'top_"),
    (["generate", "x", "--param", "min_p=2"], 1, "in: --param min_p"),
    (["generate", "x", "--param", "seed"], 1, "byref: 'seed' gives no parameter a value"),
    (["chat", "--temperature", "-1"], 1, "in: --temperature"),
    (["batch", "none.jsonl", "out.jsonl"], 1, "byref: the requests cannot be read"),
    (["bench", "--concurrency", "65"], 1, "try: --set engine.max_requests=65"),
    (["bench", "--requests", "0"], 2, "--requests"),
    (["generate", "x", "--dtype", "int8"], 1, "in: command line, field model.dtype"),
    (["generate", "x", "-p", "nobody"], 1, "byref: there is no plugin 'nobody'"),
    (["generate", "x", "--set", "engine.max_row=3"], 1, "try: did you mean 'max_rows'?"),
    (["generate", "x", "--set", "max_rows"], 1, "byref: --set max_rows names no value"),
    (["generate", "x", "--max-token", "3"], 2, "--max-tokens"),
    (["generate"], 2, "Missing argument"),
    (["generatee", "x"], 2, "Did you mean 'generate'?"),
    (["chatt"], 2, "Did you mean 'chat'?"),
    (["nonsense"], 2, "byref: there is no command 'nonsense'"),
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
    assert err.startswith(
        "byref: ZeroDivisionError: division by zero\n  this is a mistake of byref's or of an enabled plugin's; --debug shows more\n"
    )


def completed(words, *, shell="bash"):
    """What the shell would offer."""
    environment = {
        **os.environ,
        "_BYREF_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [sys.executable, "-c", "from byref.cli.main import main; main([])"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()


def test_shells_complete_commands_options_and_models():
    assert completed("byref ch") == ["chat"]
    assert "--temperature" in completed("byref chat --tem")
    assert completed("byref pull smo") == ["smollm2"]


def test_a_plugin_s_file_is_known_by_its_name(byref, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    body = "class Own(Plugin):\n    info = PluginInfo(api_version=1)\n    @hookimpl\n    def step_done(self, report): ...\n"
    (tmp_path / "own.py").write_text("from byref import Plugin, PluginInfo, hookimpl\n" + body)
    (tmp_path / "byref.toml").write_text('[plugins]\nenable = ["models", "./own.py", "./gone.py"]\n')
    code, out, _ = byref("plugins", "list")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert ["own", "enabled", "./own.py"] in rows
    assert ["gone", "missing", "./gone.py"] in rows
    (tmp_path / "byref.toml").write_text('[plugins]\nenable = ["models", "./own.py"]\n')
    for name in ("own", "./own.py"):
        code, out, err = byref("plugins", "info", name)
        assert (code, err) == (0, "")
        assert out.startswith("name             own\nstatus           enabled\ndistribution     own.py\n")
        assert byref("plugins", "check", name)[1] == "own (own.py): fine; hooks: step_done\n"


def test_a_command_that_only_a_plugin_has_says_who_may_bring_it(byref, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = byref("bench", "spec")
    assert code == 2
    assert "there is no command 'bench spec'" in err
    assert "in: the enabled plugins: models\n" in err
    assert "spec_decoding" in err.partition("try:")[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "hi", "--device", "mps"), "model.device: is auto, cpu, cuda or cuda:N, not 'mps'"),
        (("generate", "hi", "-m", "smolm2"), "try: did you mean 'smollm2'?"),
        (("bench", "--concurrency", "0"), "try: 1 or more"),
        (("batch", "there.jsonl", "nowhere/out.jsonl"), "the results cannot be written: No such file or directory"),
        (("batch", "gone.jsonl", "out.jsonl"), "the requests cannot be read: No such file or directory"),
    ],
)
def test_a_mistake_is_answered_with_what_to_write(byref, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").write_text('{"prompt": "a"}\n')
    code, _, err = byref(*arguments)
    assert code == 1
    assert said in err
    assert "mistake of byref's" not in err


def test_a_file_that_cannot_be_written_is_no_mistake_of_byref_s(byref, tmp_path, monkeypatch):
    def fails(*_, **__):
        (tmp_path / "nowhere" / "x").write_text("")

    monkeypatch.setattr("byref.cli.options.load_config", fails)
    code, _, err = byref("config", "show")
    assert code == 1
    assert err.startswith(f"byref: No such file or directory\n  in: {tmp_path}/nowhere/x\n")
