"""Tables that ship as parsed are what their files hold; what is not of a file's bytes is not used."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from equipoise import files
from equipoise.files import keep_records, keep_tables, kept_record, shipped_files, shipped_table
from equipoise.spec.catalogue import keep_shipped
from equipoise.spec.hardware import Hardware, load_hardware
from equipoise.spec.workload import WorkloadTable, load_workloads

PACKAGE = Path(files.__file__).parent


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


def test_a_file_of_the_user_is_parsed_itself(mine) -> None:
    path = mine("read = 2026-01-31", "hardware.toml")
    assert shipped_table(path) == tomllib.loads(path.read_text())


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which records are kept, in place of the one that an installation wrote."""
    monkeypatch.setattr(files, "_RECORDS", tmp_path / "records")
    monkeypatch.setattr(files, "_cached_records", files._cached_records.__wrapped__)
    keep_shipped()
    return tmp_path / "records"


def nothing() -> Hardware:
    return Hardware(accelerators={}, names={}, names_in_systems={}, short_names={})


@pytest.mark.usefixtures("records")
def test_records_that_are_kept_are_those_that_the_tables_make() -> None:
    assert kept_record("hardware", Hardware, nothing) == load_hardware() != nothing()
    kept = kept_record("workloads", WorkloadTable, lambda: WorkloadTable(workloads={}, names={}))
    assert kept == load_workloads()


def test_records_are_made_again_where_what_they_are_of_has_changed(
    records: Path, tmp_path: Path, mine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PACKAGE", tmp_path)
    source = mine("a = 1", "table.toml")
    keep_records({"hardware": load_hardware()}, ["table.toml"])
    assert kept_record("hardware", Hardware, nothing) == load_hardware()
    source.write_text("a = 2")
    assert kept_record("hardware", Hardware, nothing) == nothing()
    source.unlink()
    assert kept_record("hardware", Hardware, nothing) == nothing()
    records.write_bytes(b"\xc1")
    assert kept_record("hardware", Hardware, nothing) == nothing()


def test_every_file_that_says_what_is_in_a_record_is_watched(records: Path) -> None:
    """What a fresh interpreter opens of the package while it loads the tables, against what is compared."""
    program = """
import json, sys
opened = set()
sys.addaudithook(lambda event, of: opened.add(str(of[0])) if event == "open" else None)
from equipoise.spec.hardware import load_hardware
from equipoise.spec.workload import load_workloads
load_hardware(), load_workloads()
modules = [module.__file__ for name, module in sys.modules.items() if name.startswith("equipoise")]
print(json.dumps([*(name for name in opened if name.endswith(".toml")), *modules]))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    read = {str(Path(name).relative_to(PACKAGE)) for name in json.loads(run.stdout)}
    sums = msgspec.msgpack.decode(records.read_bytes(), type=tuple[dict[str, int], dict[str, msgspec.Raw]])[0]
    assert read == sums.keys()
