"""The experts of a mixture that a row states, in columns or in words such as `64 experts of 384 top-6`."""

import re
from typing import Final

from msgspec import Struct

from equipoise.calibration.published.quantities import count, stated
from equipoise.errors import DataError
from equipoise.runs.readers.cells import TextRow, echo

_MAX_EXPERTS, _MAX_WIDTH, _MAX_LAYERS = 10_000, 1_000_000, 10_000
# What says that a model has experts: the word, or its parameters that a token passes (30B-A3B).
_IS_MIXTURE: Final = re.compile(r"\bmoe\b|\bexperts?\b|\b\d+(?:\.\d+)?b-a\d+(?:\.\d+)?b\b", re.IGNORECASE)
_WORDS: Final = {
    "experts": r"\b(\d{1,5})(?: routed)? experts\b|\bexperts? ?[=:] ?(\d{1,5})\b",
    "top_k": r"\btop[-_ ]?(?:k ?[=:]? ?)?(\d{1,4})\b",
    "width": r"\bexperts\b[^;,()]*?\b(?:of|ffn|width)[ =](\d{2,7})\b",
    "num_shared": r"(?:\+|\band|,) ?(\d{1,2}) shared\b",
    "shared_width": r"\bshared experts?(?: of| ffn)?[ =](\d{2,7})\b",
    "dense_layers": r"\b(\d{1,4}) dense\b",
}


class Experts(Struct, frozen=True, kw_only=True):
    """Experts of a layer. width: of the block of each, None where it is not stated; shared_width: of all that
    every token passes. dense_layers: layers without any.
    """

    experts: int
    top_k: int
    width: int | None
    shared_width: int
    dense_layers: int


def experts_of(row: TextRow) -> Experts | None:
    """The experts of a row's model; None where it is no mixture.

    Raises DataError for a mixture whose number of experts, or of those that a token passes, is not stated.
    """
    name = stated(row, "workload")
    words = f"{name} {stated(row, 'parallel_config')}"

    def said(what: str, most: int) -> int | None:
        found = re.search(_WORDS[what], words, re.IGNORECASE)
        number = None if found is None else int(next(filter(None, found.groups())))
        return number if number is not None and number <= most else None

    experts = count(row, "experts", most=_MAX_EXPERTS)
    if experts is None and _IS_MIXTURE.search(name) is None:
        return None
    experts = experts or said("experts", _MAX_EXPERTS)
    top_k = count(row, "top_k", most=_MAX_EXPERTS) or said("top_k", _MAX_EXPERTS)
    if experts is None or top_k is None:
        raise DataError(
            f"workload {echo(name)}: a mixture of experts={experts}, top_k={top_k}; expected both, in "
            "columns or in words such as `64 experts top-8`"
        )
    width = said("width", _MAX_WIDTH)
    shared_width = said("shared_width", _MAX_WIDTH) or (said("num_shared", _MAX_EXPERTS) or 0) * (width or 0)
    return Experts(
        experts=experts,
        top_k=top_k,
        width=width,
        shared_width=shared_width,
        dense_layers=said("dense_layers", _MAX_LAYERS) or 0,
    )
