"""What the page of records says first."""

from equipoise.report.words import listed
from equipoise.study.findings import AccuracyFindings
from equipoise.units import format_percent


def headline(findings: AccuracyFindings) -> str:
    """How wrong each kind of answer was, in one sentence."""
    told = []
    if findings.forecasts is not None and findings.forecasts.summaries:
        ours = findings.forecasts.summaries[0].ours
        told.append(f"forecasts of published results {format_percent(round(ours.median_abs_error, 3))}")
    if findings.profiles:
        medians = sorted(each.record.median for each in findings.profiles)
        ends = [format_percent(round(value, 3)) for value in (medians[0], medians[-1])]
        told.append(f"steps {ends[0]} to {ends[-1]}")
    if findings.plans:
        medians = sorted(each.median for each in findings.plans)
        ends = [format_percent(round(value, 3)) for value in (medians[0], medians[-1])]
        told.append(f"plans of whole trainings {ends[0]} to {ends[-1]}")
    if not told:
        return "No record ships with this installation"
    return f"Median errors on what was held out: {listed(told)}"


def summary(_: AccuracyFindings) -> tuple[str, ...]:
    """What a record is."""
    return (
        "Every prediction carries the record of its kind: how wrong such ones were on results held out.",
        "Random cross-validation flatters: here whole groups are held out, and nothing later enters.",
    )
