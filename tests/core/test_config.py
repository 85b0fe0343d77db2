"""The configuration: precedence, origins, and sentences for what is wrong."""

import pytest

from byref.config import Config, load_config
from byref.contract.errors import ConfigError

TOML = """
[model]
path = "from-file"
dtype = "float32"
[plugins]
enable = ["a", "b"]
[plugins.a]
size = 1
name = "file"
[bind]
"AttentionSpec.model.layers.0.self_attn" = "a"
[engine]
max_rows = 100
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults(here):
    config = load_config(environ={})
    assert config == Config()
    assert config.model.path == "smollm2"
    assert config.plugins.enable == ("models",)
    assert config.engine.chunk == config.engine.max_rows == 512
    assert {origin for _, _, origin in config.items()} == {"default"}


def test_later_layers_win_value_by_value(here):
    (here / "byref.toml").write_text(TOML)
    environ = {"BYREF_MODEL__DTYPE": "float16", "BYREF_PLUGINS__A__SIZE": "2", "BYREF_ENGINE__SEED": "7", "OTHER": "x"}
    config = load_config(overrides={"engine.seed": 8, "plugins": {"a": {"flag": True}}}, environ=environ)
    assert {key: (value, origin) for key, value, origin in config.items() if origin != "default"} == {
        "model.path": ("from-file", "byref.toml"),
        "model.dtype": ("float16", "BYREF_MODEL__DTYPE"),
        "plugins.enable": (("a", "b"), "byref.toml"),
        "plugins.a.name": ("file", "byref.toml"),
        "plugins.a.size": (2, "BYREF_PLUGINS__A__SIZE"),
        "plugins.a.flag": (True, "command line"),
        "bind.AttentionSpec.model.layers.0.self_attn": ("a", "byref.toml"),
        "engine.max_rows": (100, "byref.toml"),
        "engine.seed": (8, "command line"),
    }
    assert config.plugins.options["a"] == {"name": "file", "size": 2, "flag": True}
    assert config.bind == {"AttentionSpec.model.layers.0.self_attn": "a"}
    assert config.engine.chunk == 100


@pytest.mark.parametrize(
    ("environ", "edits", "expected", "origin"),
    [
        ({}, (), ("a", "b"), "byref.toml"),
        ({"BYREF_PLUGINS": " c, d "}, (), ("c", "d"), "BYREF_PLUGINS"),
        ({"BYREF_PLUGINS": ""}, (), (), "BYREF_PLUGINS"),
        ({"BYREF_DISABLE_PLUGINS": "a"}, (), ("b",), "BYREF_DISABLE_PLUGINS"),
        ({"BYREF_PLUGINS": "a,c", "BYREF_DISABLE_PLUGINS": "a"}, (), ("c",), "BYREF_DISABLE_PLUGINS"),
        ({}, ("c", "no:a"), ("b", "c"), "command line"),
        ({"BYREF_DISABLE_PLUGINS": "a"}, ("a",), ("b", "a"), "command line"),
        ({}, ("a", "no:zzz"), ("a", "b"), "byref.toml"),
    ],
)
def test_enabled_plugins(here, environ, edits, expected, origin):
    (here / "byref.toml").write_text(TOML)
    config = load_config(plugins=edits, environ=environ)
    assert config.plugins.enable == expected
    assert config.origin("plugins.enable") == origin


def test_none_but_those_named(here):
    (here / "byref.toml").write_text(TOML)
    config = load_config(overrides={"plugins.enable": []}, plugins=("c",), environ={})
    assert config.plugins.enable == ("c",)


def test_pyproject_holds_it_too_where_there_is_no_byref_toml(here):
    (here / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.byref.model]\npath = "from-pyproject"\n')
    config = load_config(environ={})
    assert (config.model.path, config.origin("model.path")) == ("from-pyproject", "pyproject.toml")
    (here / "byref.toml").write_text(TOML)
    assert load_config(environ={}).model.path == "from-file"


@pytest.mark.parametrize(
    ("toml", "environ", "what", "where", "hint"),
    [
        ("[model]\npth = 'x'", {}, "unknown key 'pth'", "byref.toml, field model.pth", "did you mean 'path'?"),
        ("[engin]\nmax_rows = 1", {}, "unknown key 'engin'", "byref.toml, field engin", "did you mean 'engine'?"),
        (
            "[plugins]\nenabel = ['a']",
            {},
            "unknown key 'enabel'",
            "byref.toml, field plugins.enabel",
            "did you mean 'enable'?",
        ),
        ("[plugins]\nenable = ['a', 'a']", {}, "named twice: a", "byref.toml, field plugins.enable", ""),
        ("[engine]\nmax_rows = 0", {}, "greater than or equal to 1, got 0", "byref.toml, field engine.max_rows", ""),
        (
            "[engine]\nmax_rows = 9\nchunk = 10\nmax_requests = 9",
            {},
            "chunk (10) may not exceed max_rows (9)",
            "byref.toml, field engine",
            "",
        ),
        ("model = 'x'", {}, "model: input should be a valid dict", "byref.toml, field model", ""),
        ("x = ", {}, "is not TOML", "byref.toml", ""),
        ("", {"BYREF_MODEL__DTYPE": "int8"}, "'float16', got 'int8'", "BYREF_MODEL__DTYPE, field model.dtype", ""),
        (
            "",
            {"BYREF_MODEL__DEVICE": "tpu"},
            "cpu, cuda or cuda:N, not 'tpu'",
            "BYREF_MODEL__DEVICE, field model.device",
            "",
        ),
        ("", {"BYREF_MODLE__PATH": "x"}, "names no section", "BYREF_MODLE__PATH", "did you mean 'model'?"),
        ("", {"BYREF_MODEL": "x"}, "names a section, not a value", "environment", "BYREF_MODEL__<KEY>"),
        (
            "",
            {"BYREF_PLUGIN": "x"},
            "unknown environment variable BYREF_PLUGIN",
            "environment",
            "did you mean 'BYREF_PLUGINS'?",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(here, *, toml, environ, what, where, hint):
    (here / "byref.toml").write_text(toml)
    with pytest.raises(ConfigError) as error:
        load_config(environ=environ)
    assert what in error.value.what
    assert error.value.where == where
    assert hint in error.value.hint


def test_several_mistakes_are_listed_together(here):
    (here / "byref.toml").write_text("[engine]\nmax_rows = 0\nsead = 1\n")
    with pytest.raises(ConfigError) as error:
        load_config(environ={})
    assert str(error.value).splitlines() == [
        "2 values are wrong:",
        "  engine.max_rows: input should be greater than or equal to 1, got 0 (in byref.toml, field engine.max_rows)",
        "  unknown key 'sead' (in byref.toml, field engine.sead; did you mean 'seed'?)",
    ]


def test_a_named_file_must_be_there(here):
    with pytest.raises(ConfigError, match="no such configuration file"):
        load_config(here / "other.toml", environ={})


def test_keys_of_bind_hold_dots(here):
    config = load_config(overrides={"bind.AttentionSpec.model.layers.1.self_attn": "b"}, environ={})
    assert config.bind == {"AttentionSpec.model.layers.1.self_attn": "b"}


def test_text_stays_text(here):
    """A value of the environment is TOML where it can be, but never where the field is text."""
    environ = {"BYREF_MODEL__PATH": "123", "BYREF_PLUGINS__A__LIST": "[1, 2]", "BYREF_PLUGINS__A__WORD": "ngram"}
    config = load_config(environ=environ)
    assert config.model.path == "123"
    assert config.plugins.options["a"] == {"list": [1, 2], "word": "ngram"}
