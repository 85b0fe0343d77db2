"""A folder of its own for every test of the command line, and a tiny model that can chat."""

import json
import shutil

import pytest

from byref.cli.main import main

TEMPLATE = "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}{% endfor %}<turn>"
INTERRUPTS = '''
import os, signal
from byref import Plugin, PluginInfo, hookimpl
from byref.contract.plugin import NoOptions

class Interrupts(Plugin[NoOptions]):
    """Presses Ctrl-C in the middle of the {step}th step."""
    info = PluginInfo(api_version=1)

    @hookimpl
    def prepare_step(self, step):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == {step}:
            os.kill(os.getpid(), signal.SIGINT)
'''


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BYREF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
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


@pytest.fixture(scope="session")
def talker(tiny_llama, tmp_path_factory):
    """The tiny Llama with a chat template."""
    folder = tmp_path_factory.mktemp("talker") / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def configured(here, talker):
    """A byref.toml for it; `interrupts(n)` writes a plugin that presses Ctrl-C in step n."""
    engine = "[engine]\ncapture = 'off'\nthreads = 1\nmax_requests = 4\nmax_rows = 64\nseed = 0\n"
    model = f"[model]\npath = {json.dumps(str(talker))}\ndtype = 'float32'\ndevice = 'cpu'\n"
    (here / "byref.toml").write_text(model + engine)

    def interrupts(step):
        (here / "interrupts.py").write_text(INTERRUPTS.replace("{step}", str(step)))
        return "./interrupts.py"

    return interrupts
