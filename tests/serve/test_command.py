"""`byref serve` before it serves: what it refuses in a sentence."""

import pytest

from byref.cli import serve
from byref.cli.main import main


def refused(capsys, *options):
    with pytest.raises(SystemExit) as end:
        main(["serve", *options])
    assert end.value.code == 1
    return capsys.readouterr().err


def test_a_missing_extra_is_named(capsys, monkeypatch):
    monkeypatch.setattr(serve, "NEEDED", ("fastapi", "no_such_module"))
    said = refused(capsys)
    assert "no_such_module" in said
    assert ".[serve]" in said


def test_replicas_need_ray(capsys):
    assert "--ray" in refused(capsys, "--replicas", "2")


def test_an_address_that_is_taken(capsys, served, talker):
    said = refused(capsys, "-m", str(talker), "--port", str(served.port))
    assert f"127.0.0.1:{served.port}" in said
    assert "--port" in said


def test_a_template_that_is_not_there(capsys):
    assert "none.jinja" in refused(capsys, "--chat-template", "none.jinja")


def test_keys_are_not_shown(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "byref.toml").write_text('[serve]\napi_keys = ["hush"]\n')
    main_output(["config", "show"])
    assert "hush" not in capsys.readouterr().out


def main_output(arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code
