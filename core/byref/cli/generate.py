"""`byref generate`: completes one prompt, streamed. Knows `LLM` only."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from byref.cli import options, sampling
from byref.contract.errors import RequestError
from byref.contract.requests import SamplingParams

if TYPE_CHECKING:
    from byref.api import LLM
    from byref.engine import Completion


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to go on from; - reads it from standard input.")
    ],
    model: options.Model = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    param: options.Param = None,
    chat: Annotated[bool, typer.Option("--chat/--raw", help="Wrap the prompt in the model's chat template.")] = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    set: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Complete a prompt: text to standard output, one line of timings to standard error."""
    settings = options.configure(config, plugin, no_plugins, set, path=model, device=device, dtype=dtype)
    params = sampling.from_options(
        param, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop or None
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise RequestError("the prompt is empty", where="command line", hint='byref generate "Once upon a time"')
    started = time.perf_counter()
    from byref.api import LLM

    with LLM(config=settings) as llm:
        loaded = time.perf_counter() - started
        completion = _stream(llm, llm.render([{"role": "user", "content": text}]) if chat else text, params)
    print(_timings(loaded, completion), file=sys.stderr)


def _stream(llm: LLM, prompt: str | list[int], params: SamplingParams) -> Completion:
    """Print chunks as they come, of several choices each when it is whole; the completion they make."""
    completion = None
    for chunk in llm.stream(prompt, params):
        if params.n == 1:
            print(chunk.text, end="", flush=True)
        completion = chunk.completion
    if completion is None:
        raise RequestError("the engine ended the request without a completion")
    print("\n---\n".join(choice.text for choice in completion.choices) if params.n > 1 else "", flush=True)
    return completion


def _timings(loaded: float, done: Completion) -> str:
    count = sum(len(choice.token_ids) for choice in done.choices)
    parts = [
        f"load {loaded:.2f} s",
        f"prompt {len(done.prompt_ids)} tokens",
        f"first token {done.timings.first_token * 1000:.0f} ms",
        f"{count} tokens",
        f"{done.timings.decode_rate(count):.1f} tok/s",
        f"ended by {done.finished.value}",
    ]
    return "[" + " · ".join(parts) + "]"
