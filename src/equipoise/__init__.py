"""Equipoise: how many accelerators, which, and with what strategy, before one more stops paying.

Importing loads nothing heavy; the names below are loaded when first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# name -> module that owns it; resolved on first use so that `import equipoise` stays instant. No name here is
# that of a module beside this file: importing `equipoise.study` would put the module in the function's place.
_OWNERS = {
    "LightningWatch": "equipoise.bench.watching.lightning",
    "TrainerWatch": "equipoise.bench.watching.trainer",
    "ingest": "equipoise.runs.ingest",
    "scores": "equipoise.study",
    "tables": "equipoise.runs.chosen",
    "watch": "equipoise.bench.watching.watch",
    "watched": "equipoise.bench.watching.rows",
}

__all__ = [
    "LightningWatch",
    "TrainerWatch",
    "__version__",
    "ingest",
    "scores",
    "tables",
    "watch",
    "watched",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the owner exports
    """A public name, imported from its owner on first use."""
    if name not in _OWNERS:
        raise AttributeError(f"module 'equipoise' has no attribute {name!r}")
    return getattr(import_module(_OWNERS[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
