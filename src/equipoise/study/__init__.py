"""What a published study of results claims, and what the results show: tables in, findings out."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.study.rounds import study

__all__ = ["study"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """The function `study`, loaded where it is asked for: listing entries takes none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from equipoise.study.rounds import study  # noqa: PLC0415 - as above

    return study
