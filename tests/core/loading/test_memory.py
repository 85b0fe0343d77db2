"""Loading needs little more memory than the weights, pages of the file included."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

PROGRAM = """
import sys, torch
from byref.loading import ParameterReader, open_checkpoint
torch.set_num_threads(1)

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))

checkpoint = open_checkpoint(sys.argv[1])
torch.ones(64, 64, dtype=torch.bfloat16).float()
reader = ParameterReader(checkpoint, torch.bfloat16)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # forget the peak so far
before = status("VmRSS")
weights = [reader.load([name], checkpoint.shape(name)) for name in checkpoint.names()]
print(status("VmHWM") - before, sum(w.nbytes for w in weights))
"""
ROWS, COLUMNS = 1 << 16, 1024


def peak_over_weights(path):
    command = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    peak, weights = map(int, done.stdout.split())
    assert peak > 0.9 * weights, "the measurement sees nothing"
    return peak / weights


@pytest.fixture(scope="module", autouse=True)
def measurable():
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"this system does not let a process reset its peak memory: {error}")


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.BF16], ids=lambda kind: kind.name)
def test_gguf(tmp_path, tools, kind):
    width = {Type.Q8_0: COLUMNS // 32 * 34}.get(kind, COLUMNS * 2)
    raw = (np.zeros((ROWS, width), np.uint8), kind)
    metadata = tools.metadata_of(tools.tiny_config(num_hidden_layers=1))
    path = tools.write_gguf(tmp_path / "wide.gguf", metadata, {"token_embd.weight": raw})
    assert peak_over_weights(path) < 1.3


def test_safetensors(tmp_path, tools):
    tools.tiny_config(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    save_file(
        {"model.embed_tokens.weight": torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16)}, tmp_path / "model.safetensors"
    )
    assert peak_over_weights(tmp_path) < 1.3


@pytest.mark.model
def test_smollm2(smollm2):
    assert peak_over_weights(smollm2.path) < 1.3
