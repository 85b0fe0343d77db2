"""Debian's Chromium without a screen, driven over its debugging pipe. Knows the protocol's few commands that tests need."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One page of one browser.

    Args:
        profile: a folder for what it writes.
        url: what it opens.
    """

    def __init__(self, profile: Path, url: str) -> None:
        assert CHROMIUM is not None
        self._numbers = itertools.count(1)
        self._read, answers = os.pipe()
        commands, self._write = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        program = ["/bin/bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", CHROMIUM]
        self._process = subprocess.Popen(
            [*program, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._held, self._session = b"", None
        target = self._command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._command("Page.enable")
        self._command("Page.navigate", url=url)
        while self._message().get("method") != "Page.loadEventFired":
            continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._read)
        os.close(self._write)

    def run(self, script: str) -> Any:
        """The value of a piece of JavaScript, awaited; a failed assertion if it throws."""
        answer = self._command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a condition holds, looked at before every frame."""
        step = f"(() => {{ if ({condition}) done(true); else if (Date.now() > end) done(false); else setTimeout(look, 20) }})()"
        loop = f"new Promise((done) => {{ const end = Date.now() + 60000; const look = () => {step}; look(); }})"
        assert self.run(loop), f"it never came: {condition}\n{self.run('document.body.innerText')}"

    def _command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters}
        command |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            found = os.read(self._read, 1 << 16)
            assert found, "the browser has gone"
            self._held += found
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)
