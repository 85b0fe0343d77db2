"""Enabled and broken stops the start, with plugin, distribution, version, cause and next step."""

import pytest

from byref.config import load_config
from byref.contract.errors import ConfigError, PluginError
from byref.plugins import PluginHost

WHO = "(stranger-broken 0.3)"
WAYS = [
    (
        "import_error",
        "cannot be imported: ModuleNotFoundError: No module named 'a_module_that_nobody_has'",
        "-p no:import_error",
    ),
    ("exits", "cannot be imported: SystemExit: 3", "repair or upgrade stranger-broken"),
    ("no_attribute", "cannot be imported: AttributeError", "repair or upgrade stranger-broken"),
    ("is_module", "is not a plugin: the entry point gives a module", "name the class"),
    ("is_instance", "is not a plugin: the entry point gives <object", "name the class"),
    ("no_info", "NoInfo has no `info` of type PluginInfo", "PluginInfo(api_version=1)"),
    ("old_api", "written for version 0 of byref's API, which is at 1", "upgrade stranger-broken"),
    ("new_api", "written for version 99 of byref's API, which is at 1", "upgrade byref"),
    ("constructor", "cannot be made: OSError: no licence file", ""),
    ("unknown_hook", "unknown_hook.step_dome is no hook of byref", "did you mean 'step_done'?"),
    (
        "unknown_argument",
        "does not match its specification: hookimpl definition: step_done(report, weather)",
        "or fewer",
    ),
    ("wrapper", "wrapper.prepare_forward is a wrapper, and hooks have none", "`decorate`"),
    ("unmarked", "unmarked.step_done has the name of a hook and is not marked as one", "@hookimpl"),
    ("coroutine", "coroutine.step_done is a coroutine or generator", "plain function"),
    (
        "lonely",
        "lonely requires test.gift, and no enabled plugin provides it",
        "install a plugin that provides test.gift",
    ),
    ("bad_register", "'no colon' names no module and attribute", "package.module:attribute"),
]


def start(*names, **tables):
    return PluginHost.load(load_config(overrides={"plugins": {"enable": list(names), **tables}}, environ={}))


@pytest.mark.parametrize(("name", "cause", "hint"), WAYS, ids=[way[0] for way in WAYS])
def test_stops_the_start(site, broken, name, cause, hint):
    site(broken)
    with pytest.raises(PluginError) as error:
        start(name)
    assert f"{name} {WHO}" in error.value.where
    assert cause in error.value.what
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"needed": "x", "treshold": 1},
            ["unknown key 'treshold'", "did you mean 'threshold'?", "[plugins.options] treshold"],
        ),
        ({"needed": "x", "threshold": 2}, ["less than or equal to 1, got 2", "[plugins.options] threshold"]),
        ({}, ["needed: field required", "[plugins.options] needed"]),
        ({"neded": "x"}, ["2 values are wrong", "needed: field required", "unknown key 'neded'"]),
    ],
)
def test_bad_options(site, broken, table, expected):
    site(broken)
    with pytest.raises(PluginError) as error:
        start("options", options=table)
    assert WHO in str(error.value)
    for part in expected:
        assert part in str(error.value)


def test_a_plugin_without_options_refuses_any(site, good):
    site(good)
    with pytest.raises(PluginError, match="unknown key 'speed'"):
        start("giver", giver={"speed": 1})


def test_an_unknown_name_lists_what_was_found(site, good):
    site(good)
    with pytest.raises(PluginError) as error:
        start("models", "conter")
    assert error.value.what == "there is no plugin 'conter'"
    listed = error.value.where.partition("installed are: ")[2].split(", ")
    assert {"counter", "giver", "models", "needy", "thrower"} <= set(listed)
    assert error.value.hint == "did you mean 'counter'?"


def test_options_for_nobody_are_a_mistake(site, good):
    site(good)
    with pytest.raises(
        ConfigError, match=r"options for 'countr', and there is no such plugin(.|\n)*did you mean 'counter'"
    ):
        start("models", countr={"start": 1})
    start("models", counter={"start": 1})  # installed, not enabled: its table may stay


def test_a_missing_requirement_names_who_would_provide_it(site, good):
    site(good)
    with pytest.raises(PluginError) as error:
        start("needy")
    assert error.value.what == "needy requires test.gift, and no enabled plugin provides it"
    assert error.value.hint == "enable giver"


def test_a_conflict_names_both(site, good, broken):
    site(good, broken)
    with pytest.raises(PluginError, match="hostile and counter cannot run together") as error:
        start("counter", "hostile")
    assert "counter (stranger-good 1.2.0)" in error.value.where
    assert "hostile (stranger-broken 0.3)" in error.value.where
    start("hostile")


def test_a_circle_is_named_in_full(site, broken):
    site(broken)
    with pytest.raises(PluginError, match="circle: chicken requires egg requires chicken"):
        start("chicken", "egg")


def test_a_name_taken_twice_names_both(site, broken):
    site(broken)
    with pytest.raises(PluginError, match="the model 'XForCausalLM' is announced twice") as error:
        start("first", "second")
    assert "first (stranger-broken 0.3)" in error.value.where
    assert "second (stranger-broken 0.3)" in error.value.where


def test_one_name_from_two_distributions(site, good, rival):
    site(good, rival)
    with pytest.raises(PluginError, match="the plugin name 'counter' is claimed by") as error:
        start("counter")
    assert "stranger-good 1.2.0" in error.value.what
    assert "stranger-rival 9.0" in error.value.what
    start("giver")  # a dispute over a name that nobody uses stops nothing


def test_an_installed_copy_behind_another_is_no_dispute(site, good, tmp_path):
    import shutil

    shadow = shutil.copytree(good, tmp_path / "shadow")
    site(good, shadow)
    start("counter")


def test_bind_names_only_those_enabled(site, good):
    site(good)
    settings = {"plugins.enable": ["counter"], "bind": {"AttentionSpec": "giver"}}
    with pytest.raises(ConfigError, match="gives AttentionSpec to 'giver', which is not enabled"):
        PluginHost.load(load_config(overrides=settings, environ={}))
    PluginHost.load(load_config(overrides={**settings, "bind": {"AttentionSpec": "core"}}, environ={}))
