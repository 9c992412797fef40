"""Equipoise: how many accelerators, which, and with what strategy, before one more stops paying.

Importing loads nothing heavy; the names below are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.bench.watching.lightning import LightningWatch
    from equipoise.bench.watching.rows import watched
    from equipoise.bench.watching.trainer import TrainerWatch
    from equipoise.bench.watching.user_loop import watch
    from equipoise.library.allocation import allocate
    from equipoise.library.checks import topology, validate
    from equipoise.library.decisions import advise, plan, predict
    from equipoise.runs.embedded import tables
    from equipoise.runs.ingest import ingest
    from equipoise.study import scores

__version__ = "0.2.0"

# Module that defines each public name, imported on first use so that `import equipoise` is fast. No name may
# be that of a module in this folder: importing `equipoise.study` would replace the function by the module.
_OWNERS = {
    "LightningWatch": "equipoise.bench.watching.lightning",
    "TrainerWatch": "equipoise.bench.watching.trainer",
    "advise": "equipoise.library.decisions",
    "allocate": "equipoise.library.allocation",
    "ingest": "equipoise.runs.ingest",
    "plan": "equipoise.library.decisions",
    "predict": "equipoise.library.decisions",
    "scores": "equipoise.study",
    "tables": "equipoise.runs.embedded",
    "topology": "equipoise.library.checks",
    "validate": "equipoise.library.checks",
    "watch": "equipoise.bench.watching.user_loop",
    "watched": "equipoise.bench.watching.rows",
}

__all__ = [
    "LightningWatch",
    "TrainerWatch",
    "__version__",
    "advise",
    "allocate",
    "ingest",
    "plan",
    "predict",
    "scores",
    "tables",
    "topology",
    "validate",
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
