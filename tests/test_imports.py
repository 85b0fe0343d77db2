"""Imports go one way: plugins and models import core; core imports neither; the contract imports nothing else of byref."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFIG = (ROOT / "pyproject.toml").read_text()


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the packages under `folder` against the contracts of pyproject.toml."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", program, "--no-logo", "--no-cache"]
    paths = f"{folder / 'core'}:{folder / 'models'}"
    environment = {"PYTHONPATH": paths, "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def packages(folder: Path, **modules: str) -> Path:
    """A copy of the tree in small: each room an empty module, with `modules` (dots as __) instead of some."""
    (folder / "pyproject.toml").write_text(CONFIG)
    files = {"byref": "", "byref__contract": "", "byref__engine": "", "byref__cli": "", "byref_models": ""} | modules
    for name, text in files.items():
        base = folder / ("models" if name.startswith("byref_models") else "core")
        module = base.joinpath(*name.split("__"), "__init__.py")
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
    return folder


def test_the_tree_keeps_its_directions():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_model_may_import_core(tmp_path):
    result = lint(packages(tmp_path, byref_models="import byref.contract\n", byref__engine="import byref.contract\n"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("byref__engine", "import byref_models\n"),
        ("byref__engine", "def late():\n    import byref_paged_kv\n"),
        ("byref__contract", "from byref.engine import run\n"),
        ("byref__contract", "import typing\nif typing.TYPE_CHECKING:\n    import byref.engine\n"),
        ("byref__engine", "import byref.cli\n"),
        ("byref__elsewhere", ""),
    ],
    ids=["model", "plugin, late", "contract", "contract, for types", "command line", "a room nobody listed"],
)
def test_a_wrong_import_is_found(tmp_path, module, text):
    result = lint(packages(tmp_path, **{module: text}))
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout
