"""Every example in a docstring prints what it shows."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# By the name that it is imported by; what has no example is not imported here.
MODULES = sorted(
    ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    for folder in (ROOT / "src", ROOT / "records")
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text()
)


def test_there_are_examples():
    assert len(MODULES) > 50


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_show(name):
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
