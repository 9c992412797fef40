"""One check of `equipoise doctor`, and the version of a library."""

from importlib import metadata
from typing import Any


def check(name: str, found: str | None, needed_for: str, *, fix: str | None = None) -> dict[str, Any]:
    """One record: it works where something was found; else `install` says what to do."""
    works = found is not None
    return {
        "name": name,
        "works": works,
        "found": found,
        "needed_for": needed_for,
        "install": None if works else fix,
    }


def version(library: str) -> str | None:
    """The installed version of a library, None when it is not there."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
