"""One conversation and its `/` commands. Knows messages and parameters; neither keyboard nor screen."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from byref.cli import sampling
from byref.contract.errors import ModelError, RequestError
from byref.contract.explain import nearest
from byref.contract.requests import SamplingParams

if TYPE_CHECKING:
    from byref.api import LLM
    from byref.engine import Chunk

Message = dict[str, str]


class Leave(Exception):
    """The user wants to go."""


class Session:
    """What has been said, and how the next answer is made.

    Args:
        llm: answers.
        params: how tokens are chosen, to begin with.
        system: what the model is told first.
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None = None) -> None:
        self._llm, self._params, self._system = llm, single(params), system
        self.turns: list[Message] = []
        """User and assistant in turn."""

    @property
    def messages(self) -> list[Message]:
        """Everything the model is given."""
        head = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*head, *self.turns]

    def check(self) -> None:
        """Raise ModelError if the model has no chat template."""
        if not self._llm.engine.tokenizer.has_chat_template:
            path = str(self._llm.engine.parts.checkpoint.path)
            raise ModelError("the model has no chat template", where=path, hint="byref generate goes on from any text")

    def answer(self, text: str) -> Generator[Chunk, None, None]:
        """The answer to `text` as it comes. What has come is kept as said, also when the iterator is closed early;
        a message without any answer is forgotten."""
        self.turns.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            for chunk in self._llm.stream(self._llm.render(self.messages), self._params):
                said.append(chunk.text)
                yield chunk
        except RequestError as error:
            said.clear()
            hint = "; ".join(filter(None, (error.hint, "/reset forgets what was said")))
            raise RequestError(error.what, where=error.where, hint=hint) from error
        finally:
            self._keep("".join(said))

    def command(self, line: str) -> str:
        """Carry out a `/` command: what to show."""
        name, _, rest = line.removeprefix("/").partition(" ")
        commands = self._commands()
        if name not in commands:
            hint = nearest(f"/{name}", [f"/{known}" for known in commands])
            raise RequestError(f"there is no command /{name}", hint=f"{hint} (a message may begin with //)")
        return commands[name](rest.strip())

    def words(self) -> list[str]:
        """What the Tab key completes."""
        return [f"/{name}" for name in self._commands()]

    def _keep(self, answer: str) -> None:
        if answer:
            self.turns.append({"role": "assistant", "content": answer})
        else:
            self.turns.pop()

    def _commands(self) -> Mapping[str, Callable[[str], str]]:
        return {
            "help": self._help,
            "reset": self._reset,
            "system": self._set_system,
            "save": self._save,
            "load": self._load,
            "set": self._set,
            "quit": self._quit,
        }

    def _help(self, _: str) -> str:
        return (
            "/reset          forget what was said\n"
            "/system TEXT    tell the model how to behave; alone, show it\n"
            "/save FILE      write the conversation as JSON\n"
            "/load FILE      go on with a saved one\n"
            "/set NAME VALUE a sampling parameter; alone, show them all\n"
            "/quit           leave, as Ctrl-D does\n"
            "Ctrl-C stops an answer; a line that ends in \\ goes on in the next; // begins a message with /."
        )

    def _reset(self, _: str) -> str:
        self.turns.clear()
        return "forgotten"

    def _set_system(self, text: str) -> str:
        self._system = text or self._system
        return "(no system message)" if self._system is None else f"system: {self._system}"

    def _save(self, file: str) -> str:
        path = _path(file)
        try:
            path.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"the conversation cannot be written: {error.strerror}", where=file) from error
        return f"{len(self.messages)} messages in {path}"

    def _load(self, file: str) -> str:
        try:
            messages = json.loads(_path(file).read_text(encoding="utf-8"))
            found = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
        except OSError as error:
            raise RequestError(f"the conversation cannot be read: {error.strerror}", where=file) from error
        except (ValueError, TypeError, KeyError) as error:
            raise RequestError("the file holds no conversation", where=file, hint="one that /save wrote") from error
        if found and found[0]["role"] == "system":
            self._system = found.pop(0)["content"]
        self.turns = found
        return f"{len(self.messages)} messages from {file}"

    def _set(self, text: str) -> str:
        changed = dict([sampling.pair(text)]) if text else {}
        self._params = single(sampling.make({**self._params.model_dump(), **changed}, lambda field: f"/set {field}"))
        shown = self._params.model_dump()
        return "\n".join(f"{name} = {json.dumps(shown[name])}" for name in changed or shown)

    def _quit(self, _: str) -> str:
        raise Leave


def single(params: SamplingParams) -> SamplingParams:
    """`params`, unless they ask for several answers at once."""
    if params.n > 1:
        raise RequestError(f"a conversation goes on from one answer, not from {params.n}", where="n", hint="n = 1")
    return params


def _path(file: str) -> Path:
    if not file:
        raise RequestError("no file was named", hint="/save talk.json")
    return Path(file).expanduser()
