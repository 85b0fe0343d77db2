"""Many clients for minutes: no hang, no 5xx, nothing left over, memory flat, answers equal to solo runs.

python benchmarks/soak.py [--clients 64] [--seconds 180] [--model smollm2] [--plugin paged_kv]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from common import RESULTS  # noqa: E402
from soak import Soak, unlike_solo  # noqa: E402

WORDS = (
    "the",
    "sky",
    "is",
    "a",
    "house",
    "of",
    "birds",
    "and",
    "numbers",
    "where",
    "every",
    "river",
    "sings",
    "or",
    "tea",
)
SERVE = "import sys; from byref.cli.main import main; main(sys.argv[1:])"


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is stopped too
    command = [sys.executable, "-c", SERVE, "serve", "-m", options.model, "--model-name", "m", "--port", "0"]
    command += ["--dtype", "float32", "--set", f"engine.threads={options.threads}"]
    command += ["--set", "engine.max_context=512", *(f"-p{name}" for name in options.plugin)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        result = asyncio.run(_soak(found[0], process.pid, options))
    finally:
        process.terminate()
        process.wait(60)
    setting = {"clients": options.clients, "seconds": options.seconds, "plugins": options.plugin}
    text = json.dumps({**setting, **result}, indent=2)
    print(text)
    if not options.quick:
        (RESULTS / "soak.json").write_text(text + "\n")
    sys.exit(bool(result["wrong"] or result["unlike_solo"]) or result["memory_growth"] > 0.05)


async def _soak(url: str, pid: int, options: argparse.Namespace) -> dict[str, object]:
    while not _ready(url):
        await asyncio.sleep(0.2)
    began = time.perf_counter()
    memory: list[tuple[float, int]] = []

    async def watch() -> None:
        while True:
            memory.append((time.perf_counter() - began, _status(pid, "VmRSS")))
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    soak = Soak(url, _prompt, most=48)
    soaked = await soak.run(options.clients, lambda _: time.perf_counter() - began < options.seconds)
    watching.cancel()
    await asyncio.sleep(1)
    settled = next(kib for at, kib in memory if at >= options.seconds / 3)
    left = _left(url)
    unlike = await unlike_solo(url, soaked, options.solo)
    return {
        "statuses": dict(soaked.statuses),
        "answered": len(soaked.answers),
        "left_mid_stream": soaked.left,
        "wrong": soaked.wrong[:20],
        "unlike_solo": unlike,
        "compared": min(options.solo, len(soaked.answers)),
        "left_over": left,
        "threads": _status(pid, "Threads"),
        "memory_mib": {"a third in": settled // 1024, "end": memory[-1][1] // 1024},
        "memory_growth": round(memory[-1][1] / settled - 1, 4),
    }


def _prompt(draw: random.Random) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 80)))


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _left(url: str) -> dict[str, float]:
    """What should be 0 when nobody asks any more."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    names = ("byref_requests_running", "byref_requests_waiting", "byref_kv_used_tokens")
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(names)}


def _status(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--solo", type=int, default=64, help="answers compared with solo runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plugin", action="append", default=[])
    parser.add_argument("--quick", action="store_true", help="writes no result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
