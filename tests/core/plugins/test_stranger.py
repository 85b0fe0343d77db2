"""A stranger's plugin, installed and named in the configuration, acts; one that is not named is never imported."""

import json
import os
import subprocess
import sys

import pytest

from byref.config import load_config
from byref.contract.errors import PluginError, RequestError
from byref.plugins import PluginHost


def start(*names, **tables):
    return PluginHost.load(load_config(overrides={"plugins": {"enable": list(names), **tables}}, environ={}))


def run(folder, *arguments, mark=None, cwd=None, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BYREF_")}
    environment |= {"PYTHONPATH": str(folder), "STRANGER_MARK": str(mark or ""), **variables}
    command = [sys.executable, "-c", "from byref.cli.main import main; main()", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, text=True, capture_output=True, check=False)


def test_an_enabled_plugin_has_its_options_and_registers(site, good):
    site(good)
    host = start("models", "counter", counter={"start": 5})
    (counter,) = (plugin for plugin in host.plugins if plugin.name == "counter")
    assert (counter.dist, counter.version) == ("stranger-good", "1.2.0")
    assert counter.instance.count == 5
    assert host.registry.lookup("counter", "tokens") is counter.instance
    assert host.registry.owner("counter", "tokens") is counter
    assert host.registry.models["LlamaForCausalLM"] == "byref_models.llama:Llama"


def test_each_engine_has_its_own_instance(site, good):
    site(good)
    one, two = start("counter"), start("counter")
    assert one.plugin("counter").instance is not two.plugin("counter").instance


def test_a_disabled_plugin_is_never_imported(site, good):
    site(good)
    start("models", "giver", counter={"start": "its options are not even looked at"})
    assert "stranger_good.needy" in sys.modules
    assert "stranger_good.counter" not in sys.modules
    start("counter")
    assert "stranger_good.counter" in sys.modules


def test_lists_import_nobody(good, tmp_path):
    (tmp_path / "byref.toml").write_text('[plugins]\nenable = ["counter"]\n')
    mark = tmp_path / "mark"
    result = run(good, "plugins", "list", "--json", mark=mark, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = {row["name"]: row for row in json.loads(result.stdout)["plugins"]}
    assert rows["counter"]["status"] == "enabled"
    assert rows["giver"]["status"] == rows["models"]["status"] == "installed"
    assert rows["counter"]["version"] == "1.2.0"
    assert not mark.exists()
    assert run(good, "plugins", "info", "counter", mark=mark, cwd=tmp_path).returncode == 0
    assert mark.exists()


def test_a_plugin_brings_a_command(good, tmp_path):
    result = run(good, "count", "3", cwd=tmp_path, BYREF_PLUGINS="counter")
    assert (result.returncode, result.stdout) == (0, "0 1 2\n"), result.stderr
    result = run(good, "count", "3", cwd=tmp_path)
    assert result.returncode == 2
    assert "there is no command 'count'" in result.stderr


def test_check_and_order(good, broken, tmp_path):
    result = run(good, "plugins", "check", "needy", "-p", "giver", cwd=tmp_path)
    assert result.stdout == "needy (stranger-good 1.2.0): fine; hooks: prepare_step\n", result.stderr
    result = run(good, "plugins", "list", "--order", "-p", "needy", "-p", "giver", cwd=tmp_path)
    assert "prepare_step: giver -> needy\n" in result.stdout, result.stderr
    result = run(broken, "plugins", "check", "import_error", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("byref: import_error cannot be imported: ModuleNotFoundError")


def test_request_options_are_validated_by_their_plugin(site, good):
    site(good)
    host = start("counter", "giver")
    assert host.request_options({"counter": {"label": "x"}})["counter"].label == "x"
    for raw, message in [
        ({"counter": {"lable": "x"}}, "unknown key 'lable'"),
        ({"counter": {"label": 3}}, "label: input should be a valid string, got 3"),
        ({"counter": 7}, "input should be a valid dictionary"),
        ({"giver": {}}, "giver takes no options per request"),
        ({"countr": {}}, "the plugin 'countr' is not enabled"),
    ]:
        with pytest.raises(RequestError, match=message) as error:
            host.request_options(raw)
        assert f"plugin {next(iter(raw))}" in str(error.value)


def test_a_file_is_a_plugin_for_trying_things(tmp_path, monkeypatch):
    file = tmp_path / "quick.py"
    file.write_text(
        "from byref import Plugin, PluginInfo, hookimpl\n"
        "class Quick(Plugin):\n"
        "    info = PluginInfo(api_version=1)\n"
        "    @hookimpl\n"
        "    def step_done(self, report): report.append(self.name)\n"
    )
    host = start(str(file))
    seen = []
    host.hooks.step_done(seen)
    assert seen == ["quick"]
    file.write_text("x = 1\n")
    with pytest.raises(PluginError, match="defines 0 plugins, and must define one"):
        start(str(file))
    with pytest.raises(PluginError, match="there is no plugin file"):
        start(str(tmp_path / "missing.py"))
