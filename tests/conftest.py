"""Fixtures shared by all tests: where the development data is, and nothing else."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The development data, or a skip that says how to provide it."""
    path = Path(os.environ.get("EQUIPOISE_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("development data not found: set EQUIPOISE_DATA to its folder")
    return path
