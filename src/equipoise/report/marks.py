"""Which colour and symbol an accelerator or a group has: the same everywhere in one report."""

from collections import Counter

from equipoise.findings import Findings
from equipoise.report.charts import NUM_COLOURS, SYMBOLS, Mark


def accelerator_marks(findings: Findings) -> dict[str | None, Mark]:
    """A mark for each accelerator: colours for those with the most entries, quiet grey for the rest.

    Symbols repeat the colours' order, so that neither colour blindness nor grey paper hides a series.
    """
    entries = Counter[str | None]()
    for workload in findings.workloads:
        entries.update(workload.entries["accelerator"].to_list())
    ranked = sorted(entries, key=lambda slug: (-entries[slug], slug or ""))
    return {slug: _mark(place) for place, slug in enumerate(ranked)}


def workload_marks(findings: Findings) -> dict[str, Mark]:
    """A mark for each workload, in the order of the findings."""
    return {workload.workload: _mark(place) for place, workload in enumerate(findings.workloads)}


def group_mark(cluster: int | None) -> Mark:
    """The mark of a K-means group, counted from 1; grey where an entry belongs to none."""
    if cluster is None:
        return Mark(colour=None, symbol="circle")
    return _mark(cluster - 1)


def _mark(place: int) -> Mark:
    colour = place + 1 if place < NUM_COLOURS else None
    return Mark(colour=colour, symbol=SYMBOLS[place % len(SYMBOLS)])
