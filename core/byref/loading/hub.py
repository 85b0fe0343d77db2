"""Models of the Hugging Face hub, by their ids. Knows huggingface_hub and its cache; reads no model."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from byref.contract.errors import ModelError

_WORD = r"[A-Za-z0-9][\w.-]*"
_ID = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>[\w./-]+?))?(?:/(?P<file>[^@:]+\.gguf))?")
_FOLDER = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
"""What a folder needs: the same weights in other formats stay where they are."""


def is_hub_id(source: str) -> bool:
    """Whether `source` may be `org/name`, `org/name@revision` or `org/name/file.gguf`, and is nothing on this disk."""
    first = source.partition("/")[0]
    found = _ID.fullmatch(source)
    return found is not None and not found["repo"].endswith(".gguf") and not any(map(os.path.exists, (source, first)))


def fetch(source: str) -> Path:
    """The folder, or the GGUF file, of a hub id: from the hub's cache, filled from the hub where that can be reached.

    Raises:
        ModelError: not cached while offline, no such repository, revision or file, or no right to it.
    """
    from huggingface_hub import constants, errors, snapshot_download

    found = _ID.fullmatch(source)
    assert found is not None
    repo, revision, file = found["repo"], found["revision"], found["file"]
    # A pattern's * stands for slashes too: files in subfolders (other formats, older checkpoints) are left out.
    patterns: dict[str, Any] = {"allow_patterns": [file]} if file else _folder_patterns()
    try:
        with _bars_on_terminals_only():
            folder = Path(snapshot_download(repo, revision=revision, **patterns))
    except errors.GatedRepoError as error:
        hint = f"ask for access at {constants.ENDPOINT}/{repo}, then `hf auth login`"
        raise ModelError(f"the hub gives {repo} only to those who were let in", where=source, hint=hint) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        hint = "check the name; a private repository needs `hf auth login`; a folder on this disk is given by its path"
        raise ModelError(f"the hub has no {source}", where=constants.ENDPOINT, hint=hint) from error
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable(source, error) from error
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError, ValueError) as error:
        raise ModelError(f"{source} cannot be fetched from the hub: {error}", where=constants.ENDPOINT) from error
    return _member(folder, file, source) if file else folder


def _folder_patterns() -> dict[str, Any]:
    return {"allow_patterns": list(_FOLDER), "ignore_patterns": ["*/*"]}


def _member(folder: Path, file: str, source: str) -> Path:
    path = folder / file
    if not path.is_file():
        raise ModelError(f"the repository has no file {file}", where=source, hint="check the file's name on the hub")
    return path


def _unreachable(source: str, error: Exception) -> ModelError:
    from huggingface_hub import constants

    what = f"there is no file or folder {source!r}, and as a hub id it is not in the hub's cache"
    if constants.is_offline_mode():
        return ModelError(
            f"{what}, while HF_HUB_OFFLINE forbids asking the hub",
            where=str(constants.HF_HUB_CACHE),
            hint="a path that exists, or unset HF_HUB_OFFLINE and fetch it once",
        )
    reason = str(error.__cause__ or error).strip().splitlines()
    return ModelError(
        f"{what}; the hub cannot be reached: {reason[0] if reason else type(error).__name__}",
        where=constants.ENDPOINT,
        hint="check the network, or give the path of a GGUF file or a folder",
    )


@contextlib.contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
