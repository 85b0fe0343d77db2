"""Lines from the keyboard: editing, history, completion, where the standard library has readline. Knows no command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

MOST_LINES = 1000


def read(prompt: str) -> str:
    """One line, edited on a terminal. Raises EOFError and KeyboardInterrupt."""
    return input(prompt)


@contextlib.contextmanager
def history(words: Sequence[str]) -> Iterator[None]:
    """Keep what is typed on a terminal from one start to the next; Tab completes `words` at a line's beginning."""
    readline = _readline()
    if readline is None:
        yield
        return
    from byref.loading.catalog import cache_folder

    file = cache_folder() / "chat_history"
    with contextlib.suppress(OSError):  # there is none yet
        readline.read_history_file(str(file))
    _complete(readline, words)
    try:
        yield
    finally:
        readline.set_history_length(MOST_LINES)
        with contextlib.suppress(OSError):  # a folder that cannot be written: nothing is kept
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(str(file))


def _readline() -> ModuleType | None:
    """The library, on a terminal, where this Python has it."""
    if not sys.stdin.isatty():
        return None
    try:
        import readline
    except ImportError:
        return None
    return readline


def _complete(readline: ModuleType, words: Sequence[str]) -> None:
    def matching(typed: str, number: int) -> str | None:
        found = [word for word in words if readline.get_begidx() == 0 and word.startswith(typed)]
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" \t\n")
    readline.set_completer(matching)
    readline.parse_and_bind("tab: complete")
