"""Runs the kernels in Triton's interpreter, which has to be chosen before Triton is imported: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="there is no triton for this system")
def test_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", str(HERE / "interpreted_kernels.py")]
    run = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
