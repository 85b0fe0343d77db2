"""Runs the kernels in Triton's interpreter, which has to be chosen before Triton is imported: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from byref.contract.errors import ConfigError
from byref_dsa.choice import chooses_triton

HERE = Path(__file__).parent


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", str(HERE / "interpreted_kernels.py")]
    run = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


def test_kernels_that_were_asked_for_and_cannot_run_stop_the_start():
    cpu = torch.device("cpu")
    assert not chooses_triton("auto", cpu, ())
    assert not chooses_triton("torch", torch.device("cuda"), ())
    with pytest.raises(ConfigError, match="the device is cpu"):
        chooses_triton("triton", cpu, ())
