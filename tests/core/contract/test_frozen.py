"""The contract changes on purpose or not at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def load():
    spec = importlib.util.spec_from_file_location("contract_script", ROOT / "scripts/contract.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_contract_is_its_frozen_copy():
    script = load()
    told = "the contract changed: bump API_VERSION if it is released, then run `python scripts/contract.py`"
    assert script.FROZEN.read_text() == script.frozen(), told


def test_every_entry_has_its_page():
    script = load()
    for name in script.FILES:
        assert (script.PAGES / f"{name}.md").read_text() == script.page(name), "run `python scripts/contract.py`"


def test_a_hook_s_argument_is_part_of_the_copy(monkeypatch, tmp_path):
    script = load()
    before = script.frozen()
    for path in script.CONTRACT.glob("*.py"):
        text = path.read_text().replace("def commit(step: Step)", "def commit(step: Step, more: int = 0)")
        (tmp_path / path.name).write_text(text)
    monkeypatch.setattr(script, "CONTRACT", tmp_path)
    assert script.frozen() != before
