"""The pages of a backtest: errors of predicted times against baselines, and regret of advised numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from equipoise.calibration.advice_backtest import LARGEST_KNOWN, OBJECTIVES, HeldOutAdvice, advice_errors
from equipoise.calibration.forecast_record import ALL_JUMPS, OURS, AdviceErrors
from equipoise.report import format as amounts
from equipoise.report.blocks import Block, Cell, Column, Page, Section, Table, more_note, note, number
from equipoise.report.format import accelerator_name, capital, count, plural, printable, workload_name
from equipoise.scaling.backtest import Backtest, BacktestRecord, Errors, HeldOut
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.units import format_duration, format_percent

_HELD_OUT: Final = {
    "largest": "the largest size of every group of three sizes or more",
    "new_round": "all sizes of every group but its smallest",
}
_HELD_OUT_ADVICE: Final = {"largest": "largest size", "half": "larger half"}
_METHODS: Final = {
    OURS: "pooled law",
    "perfect": "perfect scaling",
    "power_law": "power law",
    LARGEST_KNOWN: "largest known size",
}
_MOST_WORST: Final = 8
# Of one screen.
_MOST_BRIEF: Final = 4


def _share(fraction: float | None) -> Cell:
    return number(fraction, amounts.share)


def _table(name: str, caption: str, heads: Sequence[str], rows: Sequence[tuple[Cell, ...]]) -> Table:
    """A table of which the first column names the row; columns of numbers are recognised by their cells."""
    numeric = [any(isinstance(row[place].key, int | float) for row in rows) for place in range(len(heads))]
    return Table(
        name=name,
        caption=caption,
        columns=tuple(
            Column(title=title, is_number=numeric[place], is_header=place == 0)
            for place, title in enumerate(heads)
        ),
        rows=tuple(rows),
    )


# --- predicted times


def _about(found: Backtest) -> str:
    batch = ", global batch known" if found.given_batch else ""
    return (
        f"{plural(found.pooled_law.num_groups, 'result')} held out: {_HELD_OUT[found.protocol]}{batch}; "
        "predicted from earlier rounds and the remaining sizes"
    )


def _headline(found: Backtest) -> str:
    ours = found.pooled_law
    covered = "" if ours.coverage is None else f"; 90 % intervals covered {amounts.share(ours.coverage)}"
    return f"Median error {amounts.share(ours.median_abs_error)}{covered}"


def _methods_blocks(found: Backtest) -> tuple[Block, ...]:
    records = {OURS: found.pooled_law, **found.baselines}
    table = _table(
        "methods",
        "Errors of the pooled law and of baselines",
        ("Method", "Held out", "Median", "Mean", "90 % within", "Coverage"),
        [(Cell(text=_METHODS.get(name, name)), *_record(each)) for name, each in records.items()],
    )
    return (table, note("Error: |predicted / actual - 1|. Coverage: share inside the 90 % interval."))


def _record(record: BacktestRecord | Errors) -> tuple[Cell, ...]:
    return (
        number(record.num_groups),
        _share(record.median_abs_error),
        _share(record.mean_abs_error),
        _share(record.p90_abs_error),
        _share(record.coverage),
    )


def _errors(name: str, title: str, by_name: Mapping[str, Errors]) -> Table:
    """Errors by what the held-out results have in common."""
    return _table(
        name,
        f"Errors by {title.lower()}",
        (title, "Held out", "Median", "Mean", "90 % within", "Coverage"),
        [(Cell(text=printable(key)), *_record(each)) for key, each in by_name.items() if each.num_groups],
    )


def _by_jump(found: Backtest) -> Table:
    return _errors("jumps", "Size over largest known", found.pooled_law.by_jump)


def _worst(found: Backtest, most: int) -> Table:
    worst = sorted(found.groups, key=lambda one: -_error(one))[:most]
    return _table(
        "worst",
        "Results predicted worst",
        ("Workload", "Round", "N", "Error", "Predicted", "Actual", "Accelerator"),
        [
            (
                Cell(text=workload_name(one.workload)),
                Cell(text=one.round),
                number(one.num_accelerators),
                _share(_error(one)),
                number(one.predicted_s, format_duration),
                number(one.actual_s, format_duration),
                Cell(text=accelerator_name(one.accelerator)),
            )
            for one in worst
        ],
    )


def _error(one: HeldOut) -> float:
    return abs(one.predicted_s / one.actual_s - 1.0)


def _brief(found: Backtest, _: int) -> tuple[Block, ...]:
    return (
        *_methods_blocks(found),
        _by_jump(found),
        _worst(found, _MOST_BRIEF),
        more_note("errors by workload", "errors by part of the time", "more of the worst"),
    )


def _section(name: str, title: str, block: Callable[[Backtest], Block]) -> Section[Backtest]:
    return Section(name=name, title=title, needs=("groups",), blocks=lambda found: (block(found),))


BACKTEST: Final[Page[Backtest]] = Page(
    title=lambda _: "Backtest of predicted times",
    about=_about,
    headline=_headline,
    sections=(
        Section(name="methods", title="Errors", needs=("groups",), blocks=_methods_blocks),
        _section("jumps", "By distance", _by_jump),
        _section(
            "workloads",
            "By workload",
            lambda found: _errors("workloads", "Workload", found.pooled_law.by_workload),
        ),
        _section(
            "causes",
            "By part of the time",
            lambda found: _errors("causes", "Part", found.pooled_law.by_cause),
        ),
        _section("worst", "Predicted worst", lambda found: _worst(found, _MOST_WORST)),
    ),
    closing=lambda _: ("Every result was predicted from strictly earlier rounds.",),
    brief=_brief,
)


# --- advised numbers


def _overall(found: Sequence[HeldOutAdvice]) -> list[AdviceErrors]:
    return [each for each in advice_errors(found) if each.jump == ALL_JUMPS]


def _advice_about(found: Sequence[HeldOutAdvice]) -> str:
    groups = len({(one.round, one.workload, one.accelerator) for one in found})
    return (
        f"{plural(groups, 'group')} of results: the number advised from earlier rounds and smaller "
        "sizes, against the number found with all sizes"
    )


def _advice_headline(found: Sequence[HeldOutAdvice]) -> str:
    """The default answer where the largest size was held out."""
    first = next(iter(_overall(found)), None)
    if first is None or first.methods[OURS].within_doubling is None:
        return "No advised number could be compared"
    ours = first.methods[OURS]
    regret = "" if ours.median_regret is None else f"; median regret {amounts.share(ours.median_regret)}"
    return (
        f"{amounts.share(ours.within_doubling or 0.0)} of {plural(first.num_compared, 'advised number')} "
        f"within a factor of 2{regret}"
    )


def _objectives(found: Sequence[HeldOutAdvice]) -> Table:
    return _table(
        "objectives",
        "Advised numbers by objective",
        ("Objective", "Held out", "Groups", "Compared", "Within 2x", "Regret", "P90", "Coverage"),
        [
            (
                Cell(text=each.objective),
                Cell(text=_HELD_OUT_ADVICE[each.held_out]),
                number(each.num_groups),
                number(each.num_compared),
                _share(each.methods[OURS].within_doubling),
                _share(each.methods[OURS].median_regret),
                _share(each.methods[OURS].p90_regret),
                _share(each.coverage),
            )
            for each in _overall(found)
        ],
    )


def _objectives_blocks(found: Sequence[HeldOutAdvice]) -> tuple[Block, ...]:
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in OBJECTIVES.items())
    return (
        _objectives(found),
        note(
            "Compared: both numbers lie within the measured sizes. Regret: the loss in efficiency "
            "times speedup "
            "(cost: in money, or lateness) on the curve of all sizes."
        ),
        note(capital(f"{legend}.")),
    )


def _beyond_blocks(found: Sequence[HeldOutAdvice]) -> tuple[Block, ...]:
    """The groups that could not be compared."""
    table = _table(
        "beyond",
        "Groups with a number at the largest size or beyond",
        ("Objective", "Held out", "Both", "Advised only", "Found only"),
        [
            (
                Cell(text=each.objective),
                Cell(text=_HELD_OUT_ADVICE[each.held_out]),
                number(each.num_both_beyond),
                number(each.num_advised_beyond),
                number(each.num_found_beyond),
            )
            for each in _overall(found)
        ],
    )
    return (table,)


def _rules(found: Sequence[HeldOutAdvice], parts: Sequence[str]) -> Iterator[Block]:
    """Balance by our law and by simple rules."""
    yield _table(
        "rules",
        "The balance point by the pooled law and by simple rules",
        ("Balance point by", "Held out", "Within 2x", "Regret", "Mean loss", "P90"),
        [
            (
                Cell(text=title),
                Cell(text=_HELD_OUT_ADVICE[each.held_out]),
                _share(each.methods[name].within_doubling),
                _share(each.methods[name].median_regret),
                _share(each.methods[name].mean_measured_regret),
                _share(each.methods[name].p90_measured_regret),
            )
            for each in _overall(found)
            if each.objective == "balance" and each.held_out in parts
            for name, title in _METHODS.items()
        ],
    )
    yield note(
        "Loss: efficiency times speedup at the measured size nearest to the number, against the best "
        "measured size, in all groups."
    )


def _advice_worst_blocks(found: Sequence[HeldOutAdvice]) -> tuple[Block, ...]:
    """The balances that lose most."""
    compared = [one for one in found if one.objective == "balance" and one.held_out == "largest"]
    worst = sorted(compared, key=lambda one: -one.losses[OURS].curve)[:_MOST_WORST]
    table = _table(
        "advice-worst",
        "Balance points that lose most",
        ("Workload", "Round", "Loss", "Advised", "Found", "Largest known", "Accelerator"),
        [
            (
                Cell(text=workload_name(one.workload)),
                Cell(text=one.round),
                _share(one.losses[OURS].curve),
                _point(one.advised),
                _point(one.found),
                number(one.largest_known),
                Cell(text=accelerator_name(one.accelerator)),
            )
            for one in worst
        ],
    )
    return (table, note("+: at that size or beyond; -: there or below."))


def _point(point: Equilibrium) -> Cell:
    mark = "+" if point.limited_by else "-" if point.is_smallest else ""
    return Cell(text=f"{count(point.num_accelerators)}{mark}", key=point.num_accelerators)


def _advice_brief(found: Sequence[HeldOutAdvice], _: int) -> tuple[Block, ...]:
    return (
        *_objectives_blocks(found)[:2],
        *_rules(found, ("largest",)),
        more_note("meaning of the objectives", "groups beyond the sizes", "the worst"),
    )


ADVICE_BACKTEST: Final[Page[Sequence[HeldOutAdvice]]] = Page(
    title=lambda _: "Backtest of advised numbers",
    about=_advice_about,
    headline=_advice_headline,
    sections=(
        Section(name="objectives", title="By objective", blocks=_objectives_blocks),
        Section(name="beyond", title="Not compared", blocks=_beyond_blocks),
        Section(
            name="rules",
            title="Against simple rules",
            blocks=lambda found: tuple(_rules(found, tuple(_HELD_OUT_ADVICE))),
        ),
        Section(name="advice-worst", title="Worst", blocks=_advice_worst_blocks),
    ),
    closing=lambda _: (
        f"Numbers up to each group's largest size; coverage is of {format_percent(0.9)} intervals.",
    ),
    brief=_advice_brief,
)
