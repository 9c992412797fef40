"""Which colour and symbol an accelerator or a group has: the same everywhere in one report."""

from collections import Counter

from equipoise.report.charts import Mark, series_mark
from equipoise.study.findings import Findings


def accelerator_marks(findings: Findings) -> dict[str | None, Mark]:
    """A mark for each accelerator: colours for those with the most entries, quiet grey for the rest.

    Symbols repeat the colours' order, so that neither colour blindness nor grey paper hides a series.
    """
    entries = Counter[str | None]()
    for workload in findings.workloads:
        entries.update(workload.entries["accelerator"].to_list())
    ranked = sorted(entries, key=lambda slug: (-entries[slug], slug or ""))
    return {slug: series_mark(place) for place, slug in enumerate(ranked)}


def workload_marks(findings: Findings) -> dict[str, Mark]:
    """A mark for each workload, in the order of the findings."""
    return {workload.workload: series_mark(place) for place, workload in enumerate(findings.workloads)}


def group_mark(cluster: int | None) -> Mark:
    """The mark of a K-means group, counted from 1; grey where an entry belongs to none."""
    if cluster is None:
        return Mark(colour=None, symbol="circle")
    return series_mark(cluster - 1)
