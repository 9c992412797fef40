"""What `equipoise backtest --advice` says: how right the advised numbers were, beside simple rules."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from equipoise.advice.forecast.advice_record import ALL_JUMPS, AdviceErrors, advice_errors
from equipoise.advice.forecast.held_out_advice import LARGEST_KNOWN, OBJECTIVES, OURS, HeldOutAdvice
from equipoise.cli.backtested import or_dash
from equipoise.cli.output import clipped, printable, table_text
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.units import format_count, format_percent, significant

_NUM_WORST = 8
_HELD_OUT = {"largest": "largest size", "half": "larger half"}
_WAYS = {
    OURS: "pooled law",
    "perfect": "perfect scaling",
    "power_law": "power law",
    LARGEST_KNOWN: "largest known size",
}
_RULES_HEAD = (
    "Lost: efficiency times speedup at the measured size nearest to the number,\n"
    "against the best measured size, in all groups.\n"
)
_WORST_HEAD = "Balances that lose most; + is at that size or beyond, - there or below.\n"


def fields(results: Sequence[HeldOutAdvice]) -> dict[str, Any]:
    """The fields of the document."""
    return {
        "protocol": "advice",
        "errors": [significant(asdict(each)) for each in advice_errors(results)],
        "groups": [_group(one) for one in results],
    }


def _group(one: HeldOutAdvice) -> dict[str, Any]:
    return {
        "round": one.round,
        "workload": one.workload,
        "accelerator": one.accelerator,
        "held_out": one.held_out,
        "objective": one.objective,
        "largest_known": one.largest_known,
        "largest": one.largest,
        "advised": _number(one.advised),
        "found": _number(one.found),
        "losses": {name: significant(asdict(each)) for name, each in one.losses.items()},
    }


def _number(point: Equilibrium) -> dict[str, Any]:
    return {
        "num_accelerators": point.num_accelerators,
        "limited_by": point.limited_by,
        "is_smallest": point.is_smallest,
        "low": point.low,
        "high": point.high,
    }


def text(results: Sequence[HeldOutAdvice]) -> str:
    """The same for people."""
    errors = [each for each in advice_errors(results) if each.jump == ALL_JUMPS]
    head = (
        "Numbers advised from strictly earlier rounds and a group's smaller sizes,",
        "against those found with all its sizes; both up to the group's largest size.",
        "Compared: where both lie inside the sizes. Regret: what the advice loses in",
        "efficiency times speedup (cost: in money, or late by), on the curve of all.",
        "p90: nine of ten lose less.",
    )
    legend = [f"{name}: {words}" for name, words in OBJECTIVES.items()]
    return "\n".join(
        (
            "".join(f"{clipped(line)}\n" for line in head),
            _objectives(errors),
            "".join(f"{clipped(line)}\n" for line in legend),
            _beyond(errors),
            _RULES_HEAD + _rules([each for each in errors if each.objective == "balance"]),
            _WORST_HEAD + _worst(results),
        )
    )


def _objectives(errors: Sequence[AdviceErrors]) -> str:
    rows = [
        (
            each.objective,
            _HELD_OUT[each.held_out],
            str(each.num_groups),
            str(each.num_compared),
            or_dash(each.ways[OURS].within_doubling),
            or_dash(each.ways[OURS].median_regret),
            or_dash(each.ways[OURS].p90_regret),
            format_percent(each.coverage),
        )
        for each in errors
    ]
    head = ("", "held out", "groups", "compared", "within 2x", "regret", "p90", "range held")
    return table_text(head, rows, align="<<>>>>>>")


def _beyond(errors: Sequence[AdviceErrors]) -> str:
    """The groups that could not be compared."""
    rows = [
        (
            each.objective,
            _HELD_OUT[each.held_out],
            str(each.num_both_beyond),
            str(each.num_advised_beyond),
            str(each.num_found_beyond),
        )
        for each in errors
    ]
    head = ("at the largest or beyond", "held out", "both", "only advised", "only found")
    return table_text(head, rows, align="<<>>>")


def _rules(errors: Sequence[AdviceErrors]) -> str:
    """Balance by our law and by simple rules."""
    rows = [
        (
            title,
            _HELD_OUT[each.held_out],
            or_dash(each.ways[name].within_doubling),
            or_dash(each.ways[name].median_regret),
            or_dash(each.ways[name].mean_measured_regret),
            or_dash(each.ways[name].p90_measured_regret),
        )
        for each in errors
        for name, title in _WAYS.items()
    ]
    head = ("balance by", "held out", "within 2x", "regret", "mean lost", "p90")
    return table_text(head, rows, align="<<>>>>")


def _worst(results: Sequence[HeldOutAdvice]) -> str:
    """The compared balances that lose most."""
    compared = [one for one in results if one.objective == "balance" and one.held_out == "largest"]
    worst = sorted(compared, key=lambda one: -one.losses[OURS].curve)[:_NUM_WORST]
    rows = [
        (
            format_percent(one.losses[OURS].curve),
            one.round,
            one.workload,
            _point(one.advised),
            _point(one.found),
            format_count(one.largest_known),
            printable(one.accelerator),
        )
        for one in worst
    ]
    head = ("lost", "round", "workload", "advised", "found", "known to", "accelerator")
    return table_text(head, rows, align="><<>>><")


def _point(point: Equilibrium) -> str:
    mark = "+" if point.limited_by else "-" if point.is_smallest else ""
    return f"{format_count(point.num_accelerators)}{mark}"
