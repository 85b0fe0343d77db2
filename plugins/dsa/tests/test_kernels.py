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


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("kernel", ["score", "attend"])
def test_kernels_compile_for_cuda(kernel):
    """At DeepSeek-V3.2's widths, in bf16, for compute capability 9.0: it takes the compiler and no device."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from byref_dsa import kernels

    function = getattr(kernels, f"{kernel}_kernel")
    pointers = {"slots": "*i64", "seen": "*i8", "scale": "fp32"}
    pointers |= dict.fromkeys(("q", "data", "weights"), "*bf16")
    pointers |= dict.fromkeys(("sums", "peaks", "totals", "scores"), "*fp32")
    sizes = {"HEADS": 64, "DIM": 128, "BLOCK_R": 8, "BLOCK_H": 64, "BLOCK_N": 64, "BLOCK_D": 128}
    if kernel == "attend":
        sizes = {"HEADS": 128, "KEY_DIM": 576, "VALUE_DIM": 512, "SPLITS": 4}
        sizes |= {"BLOCK_H": 16, "BLOCK_N": 32, "BLOCK_V": 512, "BLOCK_T": 64}
    names = function.arg_names
    signature = {name: "constexpr" if name in sizes else pointers.get(name, "i32") for name in names}
    source = ASTSource(function, signature, {(names.index(name),): value for name, value in sizes.items()})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert made.asm["cubin"]
    assert made.metadata.shared < 100_000
