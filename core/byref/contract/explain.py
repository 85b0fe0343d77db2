"""Turns a validation error into sentences a user can act on. Knows pydantic and errors; knows no section by name."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from byref.contract.errors import ByrefError

E = TypeVar("E", bound=ByrefError)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with one field."""

    field: str
    """Dotted."""
    what: str
    hint: str


def nearest(name: str, known: Collection[str]) -> str:
    """A hint for an unknown name: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(sorted(known))}" if known else "none are known here"


def problems(error: ValidationError, model: type[BaseModel]) -> Iterator[Problem]:
    """What is wrong, field by field."""
    for detail in error.errors(include_url=False):
        loc = tuple(str(part) for part in detail["loc"])
        field = ".".join(loc)
        known = _fields(_model_at(model, loc[:-1]))
        # dict_type: where further tables are allowed (`[plugins.<name>]`), a misspelt value is not one
        if detail["type"] in ("extra_forbidden", "dict_type") and loc and loc[-1] not in known:
            yield Problem(field, f"unknown key {loc[-1]!r}", nearest(loc[-1], known))
        elif detail["type"] == "default_factory_not_called":
            continue  # follows from the error of another field
        else:
            message = detail["msg"].removeprefix("Value error, ")
            got = "" if detail["type"] in ("missing", "value_error") else f", got {detail['input']!r}"
            yield Problem(field, f"{field}{': ' if field else ''}{message[:1].lower()}{message[1:]}{got}", "")


def raise_problems(
    kind: type[E], found: Collection[Problem], where: Callable[[Problem], str], cause: Exception | None = None
) -> typing.NoReturn:
    """Raise `kind` for one or several problems, each with its place."""
    first = next(iter(found))
    if len(found) == 1:
        raise kind(first.what, where=where(first), hint=first.hint or "correct the value") from cause
    lines = [f"{p.what} (in {where(p)}{'; ' if p.hint else ''}{p.hint})" for p in found]
    raise kind(f"{len(found)} values are wrong:\n  " + "\n  ".join(lines)) from cause


def _model_at(model: type[BaseModel], loc: tuple[str, ...]) -> type[BaseModel] | None:
    """The model of the table at `loc`, where the annotations name one."""
    for part in loc:
        field = model.model_fields.get(part)
        if field is None:
            return None
        candidates = (field.annotation, *typing.get_args(field.annotation))
        nested = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not nested:
            return None
        model = nested[0]
    return model


def _fields(model: type[BaseModel] | None) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]
