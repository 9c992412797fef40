"""Unequal accelerators that train together: every step waits for the one that is slowest at what is done."""

from collections.abc import Callable, Iterable
from statistics import fmean

from equipoise.spec.hardware import CONFIDENCES, DTYPES, Accelerator

_RATES = (
    "memory_byte_per_s",
    *(f"peak_{dtype}_flop_per_s" for dtype in DTYPES),
    "achieved_bf16_flop_per_s",
    "link_byte_per_s",
    "host_byte_per_s",
    "bridge_byte_per_s",
    "inter_byte_per_s",
)
_SHARES = ("ordered_fraction",)
_COUNTS = ("memory_bytes", "node_size", "num_nics")
_LATENCIES = ("intra_latency_s", "inter_latency_s")


def mixture(chips: tuple[Accelerator, ...]) -> Accelerator:
    """One accelerator that stands for equal numbers of several: the least of each rate and size, mean power.

    Assumes equal shares of the work, so that the slowest sets the pace; what one does not state is unknown.
    Source: definition of synchronous training.
    """
    if len({chip.slug for chip in chips}) == 1:
        return chips[0]
    facts: dict[str, object] = {}
    for names, least in ((_RATES + _SHARES, min), (_COUNTS, min), (_LATENCIES, max)):
        facts |= {name: _of_all(chips, name, least) for name in names}
    hosted = any(chip.topology == "host" for chip in chips)
    title = " + ".join(chip.title for chip in chips)
    return Accelerator(
        slug="+".join(chip.slug for chip in chips),
        title=title,
        vendor=" + ".join(dict.fromkeys(chip.vendor for chip in chips)),
        kind=chips[0].kind,
        source=f"the least of each figure of {title}",
        confidence=max((chip.confidence for chip in chips), key=CONFIDENCES.index),
        power_w=_of_all(chips, "power_w", fmean),
        topology="host" if hosted else chips[0].topology,
        switch_reduces=all(chip.switch_reduces for chip in chips),
        keeps_order=all(chip.keeps_order is not False for chip in chips),
        for_desktops=all(chip.for_desktops for chip in chips),
        node_source=chips[0].node_source,
        **facts,  # type: ignore[arg-type]  # numbers, by name
    )


def _of_all(
    chips: tuple[Accelerator, ...], name: str, combine: Callable[[Iterable[float]], float]
) -> float | None:
    """One figure of several accelerators; None where one of them does not state it."""
    stated = [getattr(chip, name) for chip in chips]
    return None if None in stated else combine(stated)
