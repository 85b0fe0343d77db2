"""Two replicas on one machine under Ray Serve."""

import asyncio
import json
import re
import subprocess
import sys

import httpx2 as httpx
import pytest
from engines import SIZES
from serving import free_port

pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

WHO = '''
import os
from byref import Plugin, PluginInfo, hookimpl

class Who(Plugin):
    """Says which process it is in."""
    info = PluginInfo(api_version=1)

    @hookimpl
    def register(self, registry):
        registry.route("process", self.app)

    def app(self):
        from fastapi import FastAPI
        app = FastAPI()

        @app.get("/")
        async def process() -> int:
            return os.getpid()

        return app
'''
PATIENCE = 240


def test_two_replicas_answer_alike(tmp_path, talker):
    engine = "".join(f"{name} = {json.dumps(value)}\n" for name, value in SIZES.items())
    head = f"[model]\npath = {json.dumps(str(talker))}\ndtype = 'float32'\ndevice = 'cpu'\n[engine]\n{engine}"
    (tmp_path / "who.py").write_text(WHO)
    enable = json.dumps(["models", str(tmp_path / "who.py")])
    (tmp_path / "byref.toml").write_text(f"{head}[plugins]\nenable = {enable}\n")
    program = "import sys; from byref.cli.main import main; main(sys.argv[1:])"
    options = ["serve", "--ray", "--replicas", "2", "--port", str(free_port()), "--model-name", "m"]
    command = [sys.executable, "-c", program, *options]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            lines = iter(process.stdout.readline, "")
            url = next(found[1] for line in lines if (found := re.search(r"byref: m at (http://\S+)", line)))
            processes, texts = asyncio.run(asyncio.wait_for(talk(url), PATIENCE))
        finally:
            process.terminate()
            process.wait(PATIENCE)
    assert len(processes) == 2
    assert len(texts) == 1
    assert process.returncode == 0


async def talk(url):
    """The processes that answer, and what they say to one prompt."""
    processes, texts = set(), set()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while len(processes) < 2:
            answers = await asyncio.gather(*(client.get("/plugins/who/process/") for _ in range(8)))
            processes |= {answer.json() for answer in answers if answer.status_code == 200}
        body = {"prompt": "abc", "max_tokens": 12, "temperature": 0}
        while len(texts) == 0 or len(processes) < 2:
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(16)))
            texts |= {answer.json()["choices"][0]["text"] for answer in answers if answer.status_code == 200}
    return processes, texts
