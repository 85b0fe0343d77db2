"""What HTTP costs: throughput of 16 streams, time to first token of one client, and 200 idle connections.

The engine offline and the same engine behind `byref serve` take turns. The client is plain sockets: on a machine with
few cores a heavier one would be measured along with the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import SEED, arguments, config, english, greedy, machine, model_or_skip, table, write

from byref.engine import Engine

STREAMS, PROMPT, NEW, IDLE = 16, 128, 128, 200
SERVE = "import sys; from byref.cli.main import main; main(sys.argv[1:])"
Prompts = Sequence[Sequence[int]]


class Program:
    """`byref serve` as a process of its own."""

    def __init__(self, model: Path, threads: int) -> None:
        values = {"engine.threads": threads, "engine.seed": SEED}
        sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
        options = ["-m", str(model), "--model-name", "m", "--port", "0", "--dtype", "bfloat16", "--device", "cpu"]
        command = [sys.executable, "-c", SERVE, "serve", *options, *sets]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        found = re.search(r":(\d+) ", self._process.stdout.readline())
        assert found
        self.port = int(found[1])

    def wait(self) -> None:
        """Until it answers."""
        while "200" not in asyncio.run(self._health()):
            time.sleep(0.2)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    async def _health(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = (await reader.readline()).decode()
        writer.close()
        return status

    def stream(self, prompts: Prompts, new: int) -> list[list[float]]:
        """Per prompt the seconds at which its events came, all of them asked at once."""

        async def together() -> list[list[float]]:
            began = time.perf_counter()
            return list(await asyncio.gather(*(self._one(prompt, new, began) for prompt in prompts)))

        return asyncio.run(together())

    async def _one(self, prompt: Sequence[int], new: int, began: float) -> list[float]:
        asked = {"prompt": list(prompt), "max_tokens": new, "temperature": 0, "ignore_eos": True, "stream": True}
        body = json.dumps(asked).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
        times = []
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                assert b'"error"' not in line, line
                times.append(time.perf_counter() - began)
        writer.close()
        return times

    async def idle(self, count: int) -> list[asyncio.StreamWriter]:
        """Connections that have asked once and now say nothing."""
        writers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"}")
            writers.append(writer)
        return writers


def main() -> None:
    options = arguments(__doc__, repeat=5).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is stopped too
    model = model_or_skip(options.model)
    new, streams = (8, 4) if options.quick else (NEW, STREAMS)
    program = Program(model, options.threads)
    try:
        program.wait()
        with Engine.start(config(model, options.threads)) as engine:
            prompts = english(engine.tokenizer, streams * (options.repeat + 1), PROMPT)
            rounds = [prompts[i * streams : (i + 1) * streams] for i in range(options.repeat + 1)]
            figures = _measure(engine, program, rounds, new)
    finally:
        program.stop()
    _show(figures)
    if not options.quick:
        setting = {"streams": streams, "prompt": PROMPT, "new": new, "idle": IDLE, "repeat": options.repeat}
        write("serve", {"machine": machine(), "setting": setting, **figures})


def _measure(engine: Engine, program: Program, rounds: Sequence[Prompts], new: int) -> dict[str, Any]:
    """Medians; the first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in ("offline", "http", "http_idle", "first", "first_http")}
    for prompts in rounds:
        found["offline"].append(_offline(engine, prompts, new))
        found["http"].append(_rate(program.stream(prompts, new), prompts, new))
        found["first"].append(_first(engine, prompts[0]))
        found["first_http"].append(program.stream([prompts[0]], 2)[0][0])
        found["http_idle"].append(_with_idle(program, prompts, new))
    medians = {name: statistics.median(times[1:]) for name, times in found.items()}
    return {
        "tokens_per_second": {
            "offline": medians["offline"],
            "http": medians["http"],
            "http_idle": medians["http_idle"],
        },
        "http_over_offline": medians["http"] / medians["offline"],
        "idle_over_none": medians["http_idle"] / medians["http"],
        "first_token_ms": {"offline": medians["first"] * 1000, "http": medians["first_http"] * 1000},
        "first_token_added_ms": (medians["first_http"] - medians["first"]) * 1000,
        "runs": {name: times[1:] for name, times in found.items()},
    }


def _offline(engine: Engine, prompts: Prompts, new: int) -> float:
    began = time.perf_counter()
    engine.generate(prompts, greedy(new))
    return len(prompts) * new / (time.perf_counter() - began)


def _first(engine: Engine, prompt: Sequence[int]) -> float:
    began = time.perf_counter()
    chunks = engine.stream(prompt, greedy(2))
    next(chunks)
    seconds = time.perf_counter() - began
    for _ in chunks:
        continue
    return seconds


def _rate(times: list[list[float]], prompts: Prompts, new: int) -> float:
    return len(prompts) * new / max(one[-1] for one in times)


def _with_idle(program: Program, prompts: Prompts, new: int) -> float:
    async def hold() -> float:
        writers = await program.idle(IDLE)
        try:
            return _rate(await asyncio.to_thread(program.stream, prompts, new), prompts, new)
        finally:
            for writer in writers:
                writer.close()

    return asyncio.run(hold())


def _show(figures: dict[str, Any]) -> None:
    rates, first = figures["tokens_per_second"], figures["first_token_ms"]
    rows = [
        ("offline", rates["offline"], first["offline"]),
        ("HTTP", rates["http"], first["http"]),
        (f"HTTP, {IDLE} idle connections", rates["http_idle"], "-"),
    ]
    table(("", "tokens/s", "first token, ms"), rows, "the engine offline and behind HTTP")
    print(f"HTTP / offline {figures['http_over_offline']:.3f}; idle / none {figures['idle_over_none']:.3f}")
    print(f"first token: {figures['first_token_added_ms']:.2f} ms more")


if __name__ == "__main__":
    main()
