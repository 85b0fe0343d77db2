"""Sampling parameters as text: options, NAME=VALUE pairs, fields of a line. Knows how they are written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from byref.contract.errors import RequestError
from byref.contract.requests import SamplingParams


def option(field: str) -> str:
    """The option of the command line that sets a field."""
    return f"--{field.replace('_', '-')}"


def make(values: Mapping[str, Any], where: Callable[[str], str] = option) -> SamplingParams:
    """Parameters of these values.

    Args:
        values: by field; None leaves the default.
        where: how the user knows a field.

    Raises:
        RequestError: an unknown field, or a wrong value.
    """
    given = {name: value for name, value in values.items() if value is not None}
    return SamplingParams.model_validate(given, context=lambda field: where(field.split(".")[0]))


def from_options(pairs: Sequence[str] | None, **named: Any) -> SamplingParams:
    """Parameters of the named options and of `--param name=value`."""
    others = dict(map(pair, pairs or ()))
    return make(
        {**others, **{name: value for name, value in named.items() if value is not None}},
        lambda field: f"--param {field}" if field in others else option(field),
    )


def pair(text: str) -> tuple[str, Any]:
    """`name=value` or `name value`; the value as TOML where it is that, or else as text.

    Raises:
        RequestError: there is no value.
    """
    name, _, value = text.partition("=") if "=" in text else text.partition(" ")
    if not name.strip() or not value.strip():
        raise RequestError(f"{text!r} gives no parameter a value", hint="name=value")
    return name.strip(), parse(value.strip())


def parse(text: str) -> Any:
    """A TOML value, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
