"""What only a CUDA device can show: eager and captured decode agree with the CPU, and what a captured step costs.

    python benchmarks/gpu_check.py [--layers 16] [--width 1024]

Makes its own random Llama, so nothing is fetched. Prints a table and writes results/gpu_check.json; without a CUDA
device it says so, and exits 0. A difference beyond the tolerance exits 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from byref.config import Config
from byref.contract import SamplingParams
from byref.engine import Engine

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 1e-3
PROMPTS = [[(7 * i + j) % 500 for j in range(n)] for i, n in enumerate((5, 33, 64, 100))]
TOKENS = 48


def save_model(folder: Path, layers: int, width: int) -> None:
    """A random Llama with a byte-level tokenizer."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(width // 256, 1),
        vocab_size=512,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    Tokenizer(models.WordLevel({f"t{i}": i for i in range(512)}, "t0")).save(str(folder / "tokenizer.json"))


def run(folder: Path, device: str, dtype: str, capture: str) -> dict[str, object]:
    """Tokens, their log-probabilities, and the median time of a decode step with every request running."""
    config = {
        "model": {"path": str(folder), "device": device, "dtype": dtype},
        "engine": {"capture": capture, "kv_tokens": 4096, "max_requests": 8},
    }
    with Engine.start(Config.model_validate(config)) as engine:
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, logprobs=0)
        engine.generate(PROMPTS, params)
        ids = [engine.add(prompt, params) for prompt in PROMPTS]
        done, steps = {}, []
        while len(done) < len(ids):
            began = time.perf_counter()
            chunks = engine.step()
            steps.append(time.perf_counter() - began)
            done |= {chunk.request_id: chunk.completion for chunk in chunks if chunk.completion}
        ended = [done[id] for id in ids]
    scores = [[next(iter(one.values())) for one in each.logprobs] for each in ended]
    return {"tokens": [list(each.token_ids) for each in ended], "scores": scores, "step": statistics.median(steps)}


def difference(one: dict, other: dict) -> float:
    """The largest difference of log-probabilities up to each request's first other token."""
    worst = 0.0
    for a, b, x, y in zip(one["tokens"], other["tokens"], one["scores"], other["scores"], strict=True):
        same = next((i for i in range(len(a)) if a[i] != b[i]), len(a))
        worst = max([worst, *(abs(x[i] - y[i]) for i in range(same))])
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check: this torch sees no CUDA device; nothing was checked")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), options.layers, options.width)
        cpu = run(Path(folder), "cpu", "float32", "off")
        eager = run(Path(folder), "cuda", "float32", "off")
        graphs = run(Path(folder), "cuda", "float32", "cuda")
        fast = {name: run(Path(folder), "cuda", "bfloat16", name)["step"] for name in ("off", "cuda")}
    found = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "eager_against_cpu": difference(eager, cpu),
        "graphs_against_eager": difference(graphs, eager),
        "step_ms": {"fp32 eager": eager["step"] * 1e3, "fp32 graphs": graphs["step"] * 1e3}
        | {f"bf16 {name}": step * 1e3 for name, step in fast.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gpu_check.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    return int(max(found["eager_against_cpu"], found["graphs_against_eager"]) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
