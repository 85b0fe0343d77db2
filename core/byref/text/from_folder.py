"""Reads the tokenizer of a Hugging Face folder. Knows the files' names, no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from byref.contract.errors import ModelError
from byref.text.chat import ChatTemplate
from byref.text.tokenizer import Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """The tokenizer in `tokenizer.json`, or the one transformers makes of the files there are.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing finer
            raise ModelError(f"tokenizer.json cannot be read: {error}", where=str(file)) from error
    else:
        backend = _converted(folder)
    return Tokenizer(backend, _template(folder))


def end_ids(folder: Path) -> set[int]:
    """The id of the end token that `tokenizer_config.json` names, if `tokenizer.json` has it."""
    name = _special_tokens(_settings(folder)).get("eos_token")
    if name is None or not (folder / "tokenizer.json").is_file():
        return set()
    end = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(name)
    return set() if end is None else {end}


def _converted(folder: Path) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise ModelError(
            "the folder carries no tokenizer that can be read", where=str(folder), hint="a folder with tokenizer.json"
        ) from error
    backend = getattr(found, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelError("the tokenizer has no fast form", where=str(folder), hint="a folder with tokenizer.json")
    return backend


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file.name} is not JSON: {error}", where=str(file)) from error
    return settings


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    found = {role: settings.get(role) for role in _ROLES}
    texts = {role: token["content"] if isinstance(token, dict) else token for role, token in found.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _template(folder: Path) -> ChatTemplate:
    settings = _settings(folder)
    file = folder / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(template, list):  # named templates: the default one is for conversations
        template = {item["name"]: item["template"] for item in template}.get("default")
    return ChatTemplate(template, str(folder), _special_tokens(settings))
