"""`byref chat`: a conversation at the terminal. Knows keyboard and screen; session knows what is said."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from byref.cli import editing, options, sampling
from byref.cli.session import Leave, Session
from byref.contract.errors import ByrefError, EngineStopped

if TYPE_CHECKING:
    from byref.engine import Chunk

PROMPT = "> "


def chat(
    model: options.Model = None,
    system: Annotated[str | None, typer.Option(help="What the model is told before the conversation.")] = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = None,
    top_p: options.TopP = 0.95,
    seed: options.Seed = None,
    stop: options.Stop = None,
    param: options.Param = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    plugin: options.Plugins = None,
    no_plugins: options.NoPlugins = False,
    set: options.Set = None,
    config: options.ConfigFile = None,
) -> None:
    """Talk to a model. /help lists what else can be typed; Ctrl-C stops an answer, Ctrl-D leaves."""
    settings = options.configure(config, plugin, no_plugins, set, path=model, device=device, dtype=dtype)
    params = sampling.from_options(
        param, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop or None
    )
    from byref.api import LLM

    with LLM(config=settings) as llm:
        session = Session(llm, params, system)
        session.check()
        if sys.stdin.isatty():
            print(f"{settings.model.path}: type a message, or /help.")
        _talk(session)


def _talk(session: Session) -> None:
    """Answer lines until there are no more."""
    with editing.history(session.words()):
        for line in _lines():
            try:
                _respond(session, line)
            except Leave:
                return
            except EngineStopped:
                raise
            except ByrefError as error:  # this line's mistake: the conversation goes on
                print(f"byref: {error}", file=sys.stderr)


def _lines() -> Iterator[str]:
    """What is typed; a backslash at the end of a line goes on in the next."""
    typed = ""
    while True:
        try:
            line = editing.read("" if not sys.stdin.isatty() else ". " if typed else PROMPT)
        except EOFError:
            if sys.stdin.isatty():
                print()
            return
        except KeyboardInterrupt:
            typed = ""
            print("\n(Ctrl-D or /quit leaves)")
            continue
        if line.endswith("\\"):
            typed += f"{line[:-1]}\n"
            continue
        text, typed = typed + line, ""
        if text.strip():
            yield text


def _respond(session: Session, line: str) -> None:
    if line.startswith("/") and not line.startswith("//"):
        print(session.command(line))
        return
    with contextlib.closing(session.answer(line.removeprefix("/"))) as chunks:
        try:
            _show(chunks)
        except KeyboardInterrupt:
            print(" (stopped)", end="")
    print(flush=True)


def _show(chunks: Iterable[Chunk]) -> None:
    for chunk in chunks:
        print(chunk.text, end="", flush=True)
