"""Requests and results of `byref batch`, one JSON object a line. Knows fields; runs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError

from byref.cli import sampling
from byref.contract.errors import ConfigError, RequestError
from byref.contract.explain import nearest, problems, raise_problems
from byref.contract.requests import SamplingParams

if TYPE_CHECKING:
    from byref.engine import Completion

Id = str | int


def _check_id(value: object) -> object:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return value
    raise ValueError(f"is a text or an integer, not {value!r}")


def _check_prompt(value: object) -> object:
    ids = isinstance(value, list) and all(type(id) is int and id >= 0 for id in value)
    if not ids and not isinstance(value, str):
        raise ValueError("is a text, or a list of token ids")
    return value


_BEGINS = b'{"id": '
"""How every result begins."""


class Envelope(BaseModel):
    """What a line says besides sampling parameters."""

    model_config = ConfigDict(frozen=True)

    id: Annotated[Id | None, BeforeValidator(_check_id)] = None
    prompt: Annotated[str | tuple[int, ...] | None, BeforeValidator(_check_prompt)] = None
    messages: tuple[dict[str, Any], ...] | None = None
    priority: StrictInt = 0
    plugins: dict[str, dict[str, Any]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a file."""

    number: int
    id: Id
    envelope: Envelope
    params: SamplingParams

    def claim(self, taken: set[str], source: Path) -> None:
        """Take its id; a RequestError if an earlier line has."""
        if str(self.id) in taken:
            place = where(source, self.number, "id")
            raise RequestError(f"an earlier line has the id {self.id!r}", where=place, hint="give each its own")
        taken.add(str(self.id))


def where(source: Path, number: int, field: str = "") -> str:
    """A place in a file, for errors."""
    return f"{source}, line {number}" + (f", field {field}" if field else "")


def numbered(source: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank."""
    try:
        with source.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        what = f"the requests cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(what, where=str(source), hint="a text file with one JSON object a line") from error


def request(source: Path, number: int, text: str, defaults: SamplingParams) -> Line:
    """The request of a line.

    Raises:
        RequestError: what is wrong, with line and field.
    """
    record = _object(source, number, text)
    known = [*Envelope.model_fields, *SamplingParams.model_fields]
    if unknown := [name for name in record if name not in known]:
        place = where(source, number, unknown[0])
        raise RequestError(f"unknown field {unknown[0]!r}", where=place, hint=nearest(unknown[0], known))
    envelope = _envelope(source, number, {name: record[name] for name in Envelope.model_fields if name in record})
    own = {name: value for name, value in record.items() if name not in Envelope.model_fields}
    params = sampling.make({**defaults.model_dump(), **own}, lambda field: where(source, number, field))
    return Line(number, number if envelope.id is None else envelope.id, envelope, params)


def result(line: Line, done: Completion) -> str:
    """What is written for a finished request."""
    usage = {
        "prompt_tokens": len(done.prompt_ids),
        "completion_tokens": sum(len(choice.token_ids) for choice in done.choices),
        "cached_tokens": done.cached_tokens,
    }
    seconds = {"first_token": round(done.timings.first_token, 4), "total": round(done.timings.total, 4)}
    record = {"id": line.id, **_choice(done), "usage": usage, "seconds": seconds}
    if done.others:
        record["others"] = [_choice(choice) for choice in done.others]
    if done.prompt_logprobs:
        record["prompt_logprobs"] = done.prompt_logprobs
    return json.dumps(record, ensure_ascii=False)


def _choice(done: Completion) -> dict[str, Any]:
    record = {"text": done.text, "finish_reason": done.finished.value, "token_ids": done.token_ids}
    return record | ({"logprobs": done.logprobs} if done.logprobs else {})


def finished(target: Path) -> set[str]:
    """Ids of the results in a file. What was written of a line before an interruption is cut off.

    Raises:
        ConfigError: the file holds something else, and stays as it is.
    """
    try:
        with target.open("a+b") as file:  # before a model is loaded: whether results can be written at all
            file.seek(0)
            *whole, rest = file.read().split(b"\n")
    except OSError as error:
        what = f"the results cannot be written: {error.strerror}"
        raise ConfigError(what, where=str(target), hint="a file in a folder that is there") from error
    ids = {_id(line, target, number) for number, line in enumerate(whole, start=1)}
    if rest and not rest.startswith(_BEGINS[: len(rest)]):
        raise _foreign(target, len(whole) + 1)
    if rest:
        with target.open("r+b") as file:
            file.truncate(target.stat().st_size - len(rest))
    return ids


def _id(line: bytes, target: Path, number: int) -> str:
    try:
        return str(json.loads(line)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise _foreign(target, number) from error


def _foreign(target: Path, number: int) -> ConfigError:
    hint = "name another file for the results, or move this one away"
    return ConfigError("this is no result of byref batch", where=where(target, number), hint=hint)


def _envelope(source: Path, number: int, fields: dict[str, Any]) -> Envelope:
    try:
        envelope = Envelope.model_validate(fields)
    except ValidationError as error:
        found = list(problems(error, Envelope))
        raise_problems(RequestError, found, lambda p: where(source, number, p.field.split(".")[0]), error)
    if (envelope.prompt is None) is (envelope.messages is None):
        what = "the request needs a prompt or messages, and not both"
        raise RequestError(what, where=where(source, number, "prompt"))
    return envelope


def _object(source: Path, number: int, text: str) -> Mapping[str, Any]:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise RequestError(f"the line is not JSON: {error}", where=where(source, number)) from error
    if not isinstance(record, dict):
        raise RequestError("the line is no JSON object", where=where(source, number), hint='{"prompt": "..."}')
    return record
