"""What `equipoise backtest` says: the errors beside the baselines, by workload and jump, and the worst."""

from dataclasses import asdict
from typing import Any

from equipoise.cli.output import clipped, printable, table_text
from equipoise.scaling.backtest import Backtest, Errors, HeldOut, Record
from equipoise.units import format_count, format_duration, format_percent, significant

_NUM_WORST = 8
_HELD_OUT = {
    "largest": "the largest size of every group of three sizes or more",
    "new_round": "all sizes of every group but its smallest",
}
_NAMES = {"perfect": "perfect scaling", "power_law": "power law"}


def fields(result: Backtest) -> dict[str, Any]:
    """The fields of the document."""
    return {
        "protocol": result.protocol,
        "given_batch": result.given_batch,
        "ours": significant(asdict(result.ours)),
        "baselines": {name: significant(asdict(record)) for name, record in result.baselines.items()},
        "groups": [significant(asdict(one)) for one in result.groups],
    }


def text(result: Backtest) -> str:
    """The same for people."""
    batch = "; its batch was given" if result.given_batch else ""
    head = (
        f"Foretold from strictly earlier rounds and the sizes kept: {result.ours.num_groups} results,",
        f"{_HELD_OUT[result.protocol]}{batch}.",
        "Error: |predicted / actual - 1|.",
    )
    return "\n".join(
        (
            "".join(f"{clipped(line)}\n" for line in head),
            _summary(result),
            _errors("workload", result.ours.by_workload),
            _errors(
                "held out at", {name: each for name, each in result.ours.by_jump.items() if each.num_groups}
            ),
            _errors("part of time", result.ours.by_cause),
            _worst(result.groups),
        )
    )


def _summary(result: Backtest) -> str:
    rows = [("pooled law", *_record(result.ours))]
    rows += [(_NAMES.get(name, name), *_record(each)) for name, each in result.baselines.items()]
    head = ("", "held out", "median", "mean", "90 % within", "interval held")
    return table_text(head, rows, align="<>>>>>")


def _record(record: Record) -> tuple[str, ...]:
    return (
        str(record.num_groups),
        format_percent(record.median_abs_error),
        format_percent(record.mean_abs_error),
        format_percent(record.p90_abs_error),
        "-" if record.coverage is None else format_percent(record.coverage),
    )


def _errors(title: str, by_name: dict[str, Errors]) -> str:
    rows = [
        (
            name,
            str(each.num_groups),
            or_dash(each.median_abs_error),
            or_dash(each.p90_abs_error),
        )
        for name, each in by_name.items()
        if each.num_groups
    ]
    return table_text((title, "held out", "median", "90 % within"), rows, align="<>>>")


def or_dash(fraction: float | None) -> str:
    """A fraction in percent; a dash where it is not known."""
    return "-" if fraction is None else format_percent(fraction)


def _worst(groups: tuple[HeldOut, ...]) -> str:
    """The results that were foretold worst."""
    worst = sorted(groups, key=lambda one: -_error(one))[:_NUM_WORST]
    rows = [
        (
            format_percent(_error(one)),
            one.round,
            one.workload,
            format_count(one.num_accelerators),
            format_duration(one.predicted_s),
            format_duration(one.actual_s),
            printable(one.accelerator),
        )
        for one in worst
    ]
    head = ("worst", "round", "workload", "N", "foretold", "was", "accelerator")
    return table_text(head, rows, align="><<>>><")


def _error(one: HeldOut) -> float:
    return abs(one.predicted_s / one.actual_s - 1.0)
