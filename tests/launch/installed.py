"""Programs that are not installed everywhere, for tests alone."""

import importlib
import warnings
from contextlib import contextmanager
from importlib.util import find_spec

import pytest


@contextmanager
def quiet():
    """Programs may warn on a machine without accelerators: that is no fault of a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def imported(name):
    """A module of a program; the test is skipped where it is not installed."""
    package = name.partition(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    with quiet():
        try:
            return importlib.import_module(name)
        except ImportError as err:
            pytest.skip(f"{name} cannot be imported here: {err}")
