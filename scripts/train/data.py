"""The text: docstrings of installed packages, as bytes. Knows where text lies; must not know any model."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import pydoc_data.topics
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

BOS, EOS, VOCABULARY = 256, 257, 258
PACKAGES = ("numpy", "networkx")
"""Whose docstrings are read besides those of the standard library; all come with byref's own requirements."""
SHORTEST = 64
"""Bytes below which a docstring is left out."""


@dataclass(frozen=True)
class Text:
    """Two streams of token ids, each document between BOS and EOS, and what names them."""

    train: torch.Tensor
    held_out: torch.Tensor
    digest: str

    def batches(self, seed: int, steps: int, rows: int, length: int) -> Iterator[torch.Tensor]:
        """`steps` batches [rows, length] of int64 at random places of the training stream."""
        draw = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            starts = torch.randint(len(self.train) - length, (rows,), generator=draw)
            yield self.train[starts[:, None] + torch.arange(length)].long()

    def windows(self, count: int, length: int) -> torch.Tensor:
        """`count` evenly spaced windows [count, length] of the held-out stream."""
        starts = torch.linspace(0, len(self.held_out) - length, count).long()
        return self.held_out[starts[:, None] + torch.arange(length)].long()


def docstrings(source: str) -> Iterator[str]:
    """Every docstring of a module's source, in its order, one document each."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, holders) and (text := ast.get_docstring(node)):
            yield text


def folders() -> list[tuple[str, Path]]:
    """Name and folder of everything that is read."""
    found = [("", Path(sysconfig.get_paths()["stdlib"]))]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package} is not installed"
        assert spec.origin is not None, f"{package} has no folder"
        found.append((package, Path(spec.origin).parent))
    return found


def documents() -> Iterator[str]:
    """The documents in a fixed order: topics of the Python documentation, then docstrings folder by folder."""
    topics = pydoc_data.topics.topics
    yield from (topics[name] for name in sorted(topics))
    for _, folder in folders():
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).parts
            if not {"site-packages", "test", "tests", "idlelib", "testing", "pydoc_data"}.intersection(inside):
                try:
                    yield from docstrings(path.read_text(encoding="utf-8"))
                except (SyntaxError, UnicodeDecodeError):  # samples of broken source, of which the library has some
                    continue


def ids(text: str) -> list[int]:
    """Token ids of a document: its bytes between BOS and EOS."""
    return [BOS, *text.encode(), EOS]


def gather(limit: int | None = None) -> Text:
    """Read, drop doubles, and hold out the documents whose digest says so, one in 24; stop after `limit` bytes."""
    seen: set[str] = set()
    parts: tuple[list[int], list[int]] = ([], [])
    for text in documents():
        digest = hashlib.sha256(text.encode()).hexdigest()
        if len(text) >= SHORTEST and digest not in seen:
            seen.add(digest)
            parts[int(digest, 16) % 24 == 0].extend(ids(text))
        if limit is not None and len(parts[0]) >= limit:
            break
    train, held_out = (torch.tensor(part, dtype=torch.int16) for part in parts)
    return Text(train, held_out, _digest(parts))


def _digest(parts: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
