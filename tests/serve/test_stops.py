"""How the server ends: told to by a signal, under load; told twice; and by a plugin that fails in a step."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading

import httpx2 as httpx
import openai
import pytest
from engines import SIZES
from scripts import Noted
from serving import PATIENCE, serving

HOOKS = ["prepare_step", "prepare_forward", "adjust_logits", "commit", "step_done"]
SLOW = '''
import time
from byref import Plugin, PluginInfo, hookimpl

class Slow(Plugin):
    """As a bigger model would: a step takes a while."""
    info = PluginInfo(api_version=1)

    @hookimpl
    def prepare_step(self, step):
        time.sleep(0.03)
'''


class Program:
    """`byref serve` as a process of its own."""

    def __init__(self, folder, model, *options):
        engine = "".join(f"{name} = {json.dumps(value)}\n" for name, value in SIZES.items())
        head = f"[model]\npath = {json.dumps(str(model))}\ndtype = 'float32'\ndevice = 'cpu'\n[engine]\n{engine}"
        (folder / "byref.toml").write_text(head + "[plugins]\nenable = ['models', './slow.py']\n")
        (folder / "slow.py").write_text(SLOW)
        program = "import sys; from byref.cli.main import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", program, "serve", "--port", "0", *options]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)
        line = self.process.stdout.readline()
        found = re.search(r"at (http://\S+)", line)
        assert found, line + self.process.stdout.read()
        self.url = found[1]

    async def ready(self):
        async with httpx.AsyncClient() as client:
            while (await client.get(f"{self.url}/health")).status_code != 200:
                await asyncio.sleep(0.05)

    def client(self):
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="x", max_retries=0, timeout=PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def end(self):
        """What it said, once it has ended."""
        return self.process.communicate(timeout=PATIENCE)[0]

    async def told(self, number):
        """Send a signal, and wait until it listens no more."""
        self.process.send_signal(number)
        async with httpx.AsyncClient() as client:
            try:
                while True:
                    await client.get(f"{self.url}/health")
            except httpx.HTTPError:
                return


async def one(client, number, begun):
    """How a stream ended: a reason, or the code of an error."""
    reason = None
    try:
        stream = await client.completions.create(
            model="m", prompt=f"prompt {number}", max_tokens=40, stream=True, extra_body={"ignore_eos": True}
        )
        async for event in stream:
            begun.add(number)
            reason = event.choices[0].finish_reason or reason
    except openai.APIStatusError as error:
        reason = error.code
    except openai.APIError as error:
        reason = error.body["code"]
    return reason


async def under_load(program, requests, signals):
    """Send signals while `requests` streams run or wait; how each ended."""
    await program.ready()
    begun = set()
    async with program.client() as client:
        asking = [asyncio.create_task(one(client, i, begun)) for i in range(requests)]
        while len(begun) < SIZES["max_requests"]:
            await asyncio.sleep(0.01)
        for number in signals:
            await program.told(number)
        return await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), PATIENCE)


def test_a_signal_under_load_loses_no_answer(tmp_path, talker):
    with Program(tmp_path, talker, "--model-name", "m") as program:
        ends = asyncio.run(under_load(program, 16, [signal.SIGTERM]))
        assert ends == ["length"] * 16
        assert "Traceback" not in program.end()
        assert program.process.returncode == -signal.SIGTERM


def test_what_does_not_end_in_time_gets_an_error(tmp_path, talker):
    with Program(tmp_path, talker, "--model-name", "m", "--grace", "0.2") as program:
        ends = asyncio.run(under_load(program, 16, [signal.SIGTERM]))
        assert set(ends) <= {"stopping", "length"}
        assert ends.count("stopping") >= 8, "those that waited cannot have ended"
        assert "Traceback" not in program.end()


def test_a_second_signal_stops_at_once(tmp_path, talker):
    with Program(tmp_path, talker, "--model-name", "m") as program:
        ends = asyncio.run(under_load(program, 16, [signal.SIGTERM, signal.SIGTERM]))
        assert all(isinstance(end, Exception) for end in ends)
        program.end()
        assert program.process.returncode == 128 + signal.SIGTERM


def test_a_model_that_cannot_be_loaded_ends_the_program(tmp_path, talker):
    broken = tmp_path / "model"
    broken.mkdir()
    with Program(tmp_path, broken) as program:
        said = program.end()
        assert program.process.returncode == 1
        assert str(broken) in said
        assert "Traceback" not in said


@pytest.mark.parametrize("hook", HOOKS)
def test_a_plugin_that_fails_in_a_step_under_load(talker, hook, caplog):
    with serving(talker, {"noted": Noted}) as server:
        noted = server.engine.parts.host.plugin("noted").instance
        begun = set()
        broken = threading.Event()

        def fails(_):
            return broken.is_set()

        noted.raises = {hook: fails}

        async def load():
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
                asking = [asyncio.create_task(patient(client, i)) for i in range(24)]
                while len(begun) < 4:
                    await asyncio.sleep(0.005)
                broken.set()
                return await asyncio.wait_for(asyncio.gather(*asking), PATIENCE)

        async def patient(client, number):
            asked = {"model": "tiny", "prompt": f"p{number}", "max_tokens": 200, "extra_body": {"ignore_eos": True}}
            try:
                if number % 2:
                    await client.completions.create(**asked)
                    return "answered"
                async for _ in await client.completions.create(**asked, stream=True):
                    begun.add(number)
            except openai.APIStatusError as error:
                return error.code
            except openai.APIError as error:
                return error.body["code"]
            return "answered"

        ends = asyncio.run(load())
        assert set(ends) <= {"engine_stopped", "answered"}
        assert ends.count("engine_stopped") >= 12
        assert server.ask("/health").status == 503
        assert server.ask("/health").body == {"status": "failed"}
        refused = server.complete("abc")
        assert (refused.status, refused.error["code"]) == (500, "engine_stopped")
        assert "thrown" not in json.dumps(refused.body)
        assert "/" not in refused.error["message"]
        assert server.ask("/metrics").status == 200
        assert server.desk.admission.taken == 0
        assert not server.desk.open
    assert "noted failed in" in caplog.text
