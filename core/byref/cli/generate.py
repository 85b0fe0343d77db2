"""`byref generate`: completes one prompt, streamed. Knows the engine's front door only."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from byref.cli import options
from byref.config.explain import problems, raise_problems
from byref.contract.errors import RequestError
from byref.contract.requests import SamplingParams

if TYPE_CHECKING:
    from byref.engine import Completion, Engine


def generate(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The text to go on from; - reads it from standard input.")
    ],
    model: options.Model = None,
    max_tokens: Annotated[int, typer.Option(help="At most so many new tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this probability.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Fixes the tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the completion; may be repeated.")] = None,
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
    params = _params(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop or ()
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise RequestError("the prompt is empty", where="command line", hint='byref generate "Once upon a time"')
    started = time.perf_counter()
    from byref.engine import Engine

    with Engine.start(settings) as engine:
        loaded = time.perf_counter() - started
        completion = _stream(engine, text, params, chat)
    print(_timings(loaded, completion), file=sys.stderr)


def _params(**values: Any) -> SamplingParams:
    try:
        return SamplingParams(**values)
    except ValidationError as error:
        found = list(problems(error, SamplingParams))
        raise_problems(RequestError, found, lambda p: f"--{p.field.split('.')[0].replace('_', '-')}", error)


def _stream(engine: Engine, text: str, params: SamplingParams, chat: bool) -> Completion:
    """Print chunks as they come; the completion they make."""
    prompt: str | list[int] = text
    if chat:
        rendered = engine.tokenizer.chat([{"role": "user", "content": text}])
        prompt = engine.tokenizer.encode(rendered, special=False)
    completion = None
    for chunk in engine.stream(prompt, params):
        print(chunk.text, end="", flush=True)
        completion = chunk.completion
    print(flush=True)
    if completion is None:
        raise RequestError("the engine ended the request without a completion")
    return completion


def _timings(loaded: float, done: Completion) -> str:
    count = len(done.token_ids)
    parts = [
        f"load {loaded:.2f} s",
        f"prompt {len(done.prompt_ids)} tokens",
        f"first token {done.timings.first_token * 1000:.0f} ms",
        f"{count} tokens",
        f"{done.timings.decode_rate(count):.1f} tok/s",
        f"ended by {done.finished.value}",
    ]
    return "[" + " · ".join(parts) + "]"
