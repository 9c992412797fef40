"""Tables that ship as parsed are what their files hold; what is not of a file's bytes is not used."""

import tomllib
from pathlib import Path

import pytest

from equipoise import files
from equipoise.files import keep_tables, shipped_files, shipped_table


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which every table is kept, in place of what an installation wrote."""
    monkeypatch.setattr(files, "_PARSED", tmp_path)
    keep_tables()
    return tmp_path


def test_what_is_kept_is_what_the_file_holds(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {path: tomllib.loads(path.read_text(encoding="utf-8")) for path in shipped_files()}
    assert len(held) == len([*kept.iterdir()]) > 10
    monkeypatch.delattr(tomllib, "loads")
    assert {path: shipped_table(path) for path in held} == held


@pytest.mark.usefixtures("kept")
def test_a_file_that_was_edited_is_parsed_itself() -> None:
    path = next(path for path in shipped_files() if path.name == "links.toml")
    assert shipped_table(path, b"edited = 1") == {"edited": 1}


def test_a_file_that_nothing_is_kept_of_is_parsed_itself(kept: Path) -> None:
    path = shipped_files()[0]
    expected = shipped_table(path)
    for each in kept.iterdir():
        each.unlink()
    assert shipped_table(path) == expected


def test_a_file_of_the_user_is_parsed_itself(tmp_path: Path) -> None:
    path = tmp_path / "hardware.toml"
    path.write_text("read = 2026-01-31")
    assert shipped_table(path) == tomllib.loads(path.read_text())
