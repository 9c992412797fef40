"""What a release promises about its versions: one home, locks that any mirror can serve, bounds that are run."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("core", "dev", "lower")
_PINNED = re.compile(r"^([a-z0-9-]+)(?:\[[\w,-]+\])?==(\S+)(?: ;[^\\]+)? \\$", re.MULTILINE)


def _locked(name):
    return (ROOT / "requirements" / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_is_of_versions_and_hashes_and_names_no_place(name):
    lines = _locked(name).splitlines()
    others = [
        line
        for line in lines
        if not _PINNED.match(line) and not re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?|# .*", line)
    ]
    assert len(lines) > 100
    assert others == []
    assert "://" not in _locked(name)


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_has_torch_or_what_only_a_machine_with_a_gpu_needs(name):
    found = {found for found, _ in _PINNED.findall(_locked(name))}
    assert not found & {"torch", "triton"}
    assert {each for each in found if each.startswith(("nvidia-", "cuda-"))} <= {"nvidia-ml-py"}


def test_the_lowest_versions_are_those_that_the_project_allows():
    lowest = dict(_PINNED.findall(_locked("lower")))
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [
        re.match(r"([\w-]+)>=([\d.]+)", each) for each in PROJECT["project"]["dependencies"] + extras["web"]
    ]
    assert wanted
    assert all(wanted)
    # The lowest release of a series may have been withdrawn: the next one of it is locked.
    assert not [found[0] for found in wanted if not f"{lowest[found[1]]}.".startswith(f"{found[2]}.")]


def test_only_the_package_states_its_version():
    assert "version" not in PROJECT["project"]
    version = re.search(
        r'__version__ = "([\d.]+)"', (ROOT / "src" / "equipoise" / "__init__.py").read_text()
    )[1]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {version}" in changes
    assert not re.search(r"^version:", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
