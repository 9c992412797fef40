"""The pages of `backtest` and `validate`, with their JSON documents: errors on held-out data."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from equipoise.calibration.accuracy import TimeErrors
from equipoise.calibration.advice_backtest import LARGEST_KNOWN, OBJECTIVES, HeldOutAdvice, advice_errors
from equipoise.calibration.curves import ALL_JUMPS, OURS, AdviceErrors
from equipoise.calibration.validate import ValidatedRow, Validation, usual_software
from equipoise.intervals import LEVEL
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Block,
    Cell,
    ColumnOf,
    Of,
    Page,
    Section,
    Table,
    bullets,
    by_name,
    more_note,
    named,
    names,
    note,
    numbers,
    table_of,
    words,
)
from equipoise.report.format import (
    TIMES,
    accelerator_name,
    capital,
    count,
    listed,
    printable,
    sentence,
    workload_name,
)
from equipoise.report.json import fields_of, picked, plain
from equipoise.scaling.backtest import Backtest, Errors, HeldOut
from equipoise.scaling.equilibrium import Equilibrium
from equipoise.units import format_amount, format_duration, format_percent, plural, significant, tenths

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


def _shares(title: str, of: Of) -> ColumnOf:
    return numbers(title, of, amounts.share)


_ERRORS: Final = (
    numbers("Held out", "of.num_groups"),
    _shares("Median", "of.median_abs_error"),
    _shares("Mean", "of.mean_abs_error"),
    _shares("90 % within", "of.p90_abs_error"),
    _shares("Coverage", "of.coverage"),
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
    covered = (
        ""
        if ours.coverage is None
        else f"; {format_percent(LEVEL)} intervals covered {amounts.share(ours.coverage)}"
    )
    return f"Median error {amounts.share(ours.median_abs_error)}{covered}"


def _methods_blocks(found: Backtest) -> tuple[Block, ...]:
    records = by_name({OURS: found.pooled_law, **found.baselines})
    columns = (names("Method", lambda each: _METHODS.get(each["name"], each["name"])), *_ERRORS)
    return (
        table_of("methods", columns, records, caption="Errors of the pooled law and of baselines"),
        note(
            f"Error: |predicted / actual - 1|. Coverage: share inside the {format_percent(LEVEL)} interval."
        ),
    )


def _errors(name: str, title: str, found: Mapping[str, Errors]) -> Table:
    """Errors by group of held-out results."""
    known = {key: each for key, each in found.items() if each.num_groups}
    columns = (names(title, "name"), *_ERRORS)
    return table_of(name, columns, by_name(known), caption=f"Errors by {title.lower()}")


def _by_jump(found: Backtest) -> Table:
    return _errors("jumps", "Size over largest known", found.pooled_law.by_jump)


def _worst(found: Backtest, most: int) -> Table:
    worst = sorted(found.groups, key=lambda one: -_error(one))[:most]
    columns = (
        names("Workload", lambda one: workload_name(one.workload)),
        words("Round", "round"),
        numbers("N", "num_accelerators"),
        _shares("Error", _error),
        numbers("Predicted", "predicted_s", format_duration),
        numbers("Actual", "actual_s", format_duration),
        words("Accelerator", lambda one: accelerator_name(one.accelerator)),
    )
    return table_of("worst", columns, worst, caption="Results predicted worst")


def _error(one: HeldOut) -> float:
    return abs(one.predicted_s / one.actual_s - 1.0)


def _brief(found: Backtest, _: int) -> tuple[Block, ...]:
    return (
        *_methods_blocks(found),
        _by_jump(found),
        _worst(found, _MOST_BRIEF),
        more_note("errors by workload", "errors by part of the time", "more of the worst"),
    )


BACKTEST: Final[Page[Backtest]] = Page(
    title=lambda _: "Backtest of predicted times",
    about=_about,
    headline=_headline,
    sections=(
        Section("methods", "Errors", _methods_blocks, needs=("groups",)),
        Section("jumps", "By distance", lambda found: (_by_jump(found),), needs=("groups",)),
        Section(
            "workloads",
            "By workload",
            lambda found: (_errors("workloads", "Workload", found.pooled_law.by_workload),),
            needs=("groups",),
        ),
        Section(
            "causes",
            "By part of the time",
            lambda found: (_errors("causes", "Part", found.pooled_law.by_cause),),
            needs=("groups",),
        ),
        Section("worst", "Predicted worst", lambda found: (_worst(found, _MOST_WORST),), needs=("groups",)),
    ),
    closing=lambda _: ("Every result was predicted from strictly earlier rounds.",),
    brief=_brief,
)


def backtest_fields(result: Backtest) -> dict[str, Any]:
    """The document of `backtest`."""
    found: dict[str, Any] = significant(fields_of(result))
    return found


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
    """The accuracy of the default answer when the largest size was held out."""
    first = next(iter(_overall(found)), None)
    if first is None or first.methods[OURS].within_doubling is None:
        return "No advised number could be compared"
    ours = first.methods[OURS]
    regret = "" if ours.median_regret is None else f"; median regret {amounts.share(ours.median_regret)}"
    return (
        f"{amounts.share(ours.within_doubling or 0.0)} of {plural(first.num_compared, 'advised number')} "
        f"within a factor of 2{regret}"
    )


_OBJECTIVE: Final = (
    names("Objective", "objective"),
    words("Held out", lambda each: _HELD_OUT_ADVICE[each.held_out]),
)
_OBJECTIVE_COLUMNS: Final = (
    *_OBJECTIVE,
    numbers("Groups", "num_groups"),
    numbers("Compared", "num_compared"),
    _shares("Within 2x", lambda each: each.methods[OURS].within_doubling),
    _shares("Regret", lambda each: each.methods[OURS].median_regret),
    _shares("P90", lambda each: each.methods[OURS].p90_regret),
    _shares("Coverage", "coverage"),
)
_BEYOND_COLUMNS: Final = (
    *_OBJECTIVE,
    numbers("Both", "num_both_beyond"),
    numbers("Advised only", "num_advised_beyond"),
    numbers("Found only", "num_found_beyond"),
)
_RULE_COLUMNS: Final = (
    names("Balance point by", "rule"),
    words("Held out", "held_out"),
    _shares("Within 2x", "of.within_doubling"),
    _shares("Regret", "of.median_regret"),
    _shares("Mean loss", "of.mean_measured_regret"),
    _shares("P90", "of.p90_measured_regret"),
)
_LOSS_COLUMNS: Final = (
    names("Workload", lambda one: workload_name(one.workload)),
    words("Round", "round"),
    _shares("Loss", lambda one: one.losses[OURS].curve),
    numbers("Advised", lambda one: _point(one.advised)),
    numbers("Found", lambda one: _point(one.found)),
    numbers("Largest known", "largest_known"),
    words("Accelerator", lambda one: accelerator_name(one.accelerator)),
)


def _objectives_blocks(found: Sequence[HeldOutAdvice]) -> tuple[Block, ...]:
    legend = "; ".join(f"{name}: {meaning}" for name, meaning in OBJECTIVES.items())
    return (
        table_of("objectives", _OBJECTIVE_COLUMNS, _overall(found), caption="Advised numbers by objective"),
        note(
            "Compared: both numbers lie within the measured sizes. Regret: the loss in efficiency "
            "times speedup "
            "(cost: in money, or lateness) on the curve of all sizes."
        ),
        note(capital(f"{legend}.")),
    )


def _beyond_blocks(found: Sequence[HeldOutAdvice]) -> tuple[Block, ...]:
    caption = "Groups with a number at the largest size or beyond"
    return (table_of("beyond", _BEYOND_COLUMNS, _overall(found), caption=caption),)


def _rules(found: Sequence[HeldOutAdvice], parts: Sequence[str]) -> Iterator[Block]:
    """The balance point from our law, compared with simple rules."""
    rows = [
        {"rule": title, "held_out": _HELD_OUT_ADVICE[each.held_out], "of": each.methods[name]}
        for each in _overall(found)
        if each.objective == "balance" and each.held_out in parts
        for name, title in _METHODS.items()
    ]
    yield table_of(
        "rules", _RULE_COLUMNS, rows, caption="The balance point by the pooled law and by simple rules"
    )
    yield note(
        "Loss: efficiency times speedup at the measured size nearest to the number, against the best "
        "measured size, in all groups."
    )


def _advice_worst_blocks(found: Sequence[HeldOutAdvice]) -> tuple[Block, ...]:
    compared = [one for one in found if one.objective == "balance" and one.held_out == "largest"]
    worst = sorted(compared, key=lambda one: -one.losses[OURS].curve)[:_MOST_WORST]
    return (
        table_of("advice-worst", _LOSS_COLUMNS, worst, caption="Balance points that lose most"),
        note("+: at that size or beyond; -: there or below."),
    )


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
        Section("objectives", "By objective", _objectives_blocks),
        Section("beyond", "Not compared", _beyond_blocks),
        Section("rules", "Against simple rules", lambda found: tuple(_rules(found, tuple(_HELD_OUT_ADVICE)))),
        Section("advice-worst", "Worst", _advice_worst_blocks),
    ),
    closing=lambda _: (
        f"Numbers up to each group's largest size; coverage is of {format_percent(0.9)} intervals.",
    ),
    brief=_advice_brief,
)


def advice_backtest_fields(results: Sequence[HeldOutAdvice]) -> dict[str, Any]:
    """The document of `backtest --advice`."""
    return {
        "protocol": "advice",
        "errors": significant(plain(advice_errors(results))),
        "groups": [_held_out(one) for one in results],
    }


def _held_out(one: HeldOutAdvice) -> dict[str, Any]:
    where = ("num_accelerators", "limited_by", "is_smallest", "low", "high")  # without its costs
    points = {"advised": picked(one.advised, *where), "found": picked(one.found, *where)}
    return {**fields_of(one, losses=None), **points, "losses": significant(plain(one.losses))}


# --- measured rows against the model


_MOST_REASONS: Final = 8
_MOST_FOLDS: Final = 24
_ERROR_MEANING: Final = (
    "Error: |predicted time / measured time - 1|, each cluster and each execution counted once."
)


def _validation_about(found: Validation) -> str:
    given = f", {count(found.num_given)} given for the prediction of others" if found.num_given else ""
    runs = f"{plural(found.num_executions, 'execution')} in {plural(found.errors.num_clusters, 'cluster')}"
    how = f"each value of {found.split[6:-4]} held out" if found.split != "none" else "no split"
    on = f"calibrated on {listed(found.calibrated_on)}" if found.calibrated_on else _calibration_words(found)
    rows = f"{plural(len(found.verdicts), 'row')}: {count(found.num_modelled)} expressed{given}"
    return sentence(f"{rows}; {runs}; {how}; {on}")


def _calibration_words(found: Validation) -> str:
    """The calibration behind predictions without a file: a software's, the priors, or the other folds."""
    if found.split != "none":
        return "calibrated on all others"
    names = dict.fromkeys(each.calibration for each in found.verdicts if each.predicted is not None)
    known = sorted(name for name in names if name)
    by = [f"the parameters of {listed(known)}"] if known else []
    silent = [each for each in found.verdicts if each.calibration and usual_software(each.row)]
    as_advised = " (`advise` takes it for runs that name no software)" if silent else ""
    return f"predicted by {' and by '.join([*by, *(['the priors'] if None in names else [])])}{as_advised}"


def _validation_headline(found: Validation) -> str:
    sample = "; IN SAMPLE: fitted to these rows" if found.in_sample else ""
    return (
        f"Off by {tenths(found.errors.median)} (median) over "
        f"{plural(found.num_executions, 'execution')}{sample}"
    )


def _errors_blocks(found: Validation) -> tuple[Block, ...]:
    by_file = dict(sorted(found.by_file.items()))
    if len(by_file) > 1:
        by_file["all"] = found.errors
    folds = dict(list(found.by_fold.items())[:_MOST_FOLDS])
    more = len(found.by_fold) - len(folds)
    return (
        _errors_table("File", by_file),
        _errors_table("Held out", folds),
        note(f"{more:,} more values held out: --json." if more else ""),
        bullets(_other_errors(found)),
    )


def _errors_table(title: str, found: Mapping[str, TimeErrors]) -> Table:
    columns = (
        names(title, "name"),
        numbers("Runs", "of.num_executions"),
        numbers("Clusters", "of.num_clusters"),
        numbers("Mean", "of.mape", format_percent),
        numbers("Median", "of.median", format_percent),
        numbers("90 %", "of.p90", format_percent, meaning="nine tenths of the errors are at most this"),
        numbers("In range", "of.coverage", format_percent, meaning="executions within their intervals"),
    )
    name = f"validation-{title.lower().replace(' ', '-')}"
    return table_of(name, columns, by_name(found), caption=f"Errors by {title.lower()}")


def _other_errors(found: Validation) -> Iterator[str]:
    if found.memory is not None:
        yield (
            f"Memory of {plural(found.memory.num_executions, 'run')} that state it: off by "
            f"{format_percent(found.memory.mean)} (mean), {format_percent(found.memory.largest)} at most."
        )
    if found.regret is not None:
        yield (
            f"Choosing the strategy predicted fastest: {format_percent(found.regret.mean)} slower than the "
            f"best (mean of {plural(found.regret.num_groups, 'choice')}), "
            f"{format_percent(found.regret.largest)} at most."
        )


_FOUR_DIGITS: Final = partial(format_amount, digits=4)
_WORST_COLUMNS: Final = (
    names(
        "Row",
        lambda each: named(
            f"{each.row.file}:{each.row.row}",
            detail=f"{printable(each.row.workload)} {TIMES} {count(each.row.num_accelerators)}",
        ),
    ),
    numbers("Error", "error", format_percent),
    numbers("Predicted", "predicted", _FOUR_DIGITS),
    numbers("Measured", "row.measured", _FOUR_DIGITS),
    words("Unit", "row.unit"),
)
_REASON_COLUMNS: Final = (names("Reason", lambda pair: pair[0]), numbers("Rows", lambda pair: pair[1]))


def _reasons_blocks(found: Validation) -> tuple[Block, ...]:
    rest = len(found.reasons) - _MOST_REASONS
    shown = found.reasons[:_MOST_REASONS]
    return (
        table_of("validation-reasons", _REASON_COLUMNS, shown, caption="Why rows are not expressed"),
        note(f"And {plural(rest, 'other reason')}." if rest > 0 else ""),
    )


def validation_page(num_worst: int = _MOST_WORST) -> Page[Validation]:
    """The page, with the `num_worst` worst rows."""

    def worst_blocks(found: Validation) -> tuple[Block, ...]:
        rows = worst(found, num_worst)
        return (
            table_of("validation-worst", _WORST_COLUMNS, rows, caption="The rows with the largest errors"),
        )

    return Page(
        title=_validation_headline,
        about=_validation_about,
        headline=_validation_headline,
        summary=lambda _: (_ERROR_MEANING,),
        sections=(
            Section("errors", "Errors", _errors_blocks, needs=("by_file",)),
            *((Section("worst", "Largest errors", worst_blocks, needs=("verdicts",)),) if num_worst else ()),
            Section("reasons", "Rows not expressed", _reasons_blocks, needs=("reasons",), is_extra=True),
        ),
        brief=lambda found, _: _errors_blocks(found),
    )


def validation_fields(found: Validation, *, num_worst: int = _MOST_WORST) -> dict[str, Any]:
    """The document of `validate`."""
    return {
        "summary": significant(_summary(found)),
        "files": significant(plain(found.by_file)),
        "folds": significant(plain(found.by_fold)),
        "reasons": [{"reason": reason, "count": count} for reason, count in found.reasons],
        "worst": [
            {**picked(each.row, "file", "row"), "error": significant(each.error)}
            for each in worst(found, num_worst)
        ],
        "rows": [_row(each) for each in found.verdicts],
    }


def _summary(found: Validation) -> dict[str, Any]:
    num_predicted = len(found.verdicts) - found.num_given
    whole = {"verdicts": None, "by_file": None, "by_fold": None, "reasons": None, "errors": None}
    return {
        **fields_of(found.errors),
        **fields_of(found, **whole),
        "num_rows": len(found.verdicts),
        "modelled_fraction": found.num_modelled / num_predicted if num_predicted else None,
        "calibrations": [*dict.fromkeys(each.calibration for each in found.verdicts if each.calibration)],
    }


def _row(verdict: ValidatedRow) -> dict[str, Any]:
    row = verdict.row
    return {
        **picked(row, "file", "row", "measured"),
        **significant(picked(verdict, "predicted", "low", "high")),
        "unit": row.unit,
        "reason": verdict.reason,
        "error": significant(verdict.error),
        "measured_s": significant(row.seconds),
        "execution": row.execution if row.execution >= 0 else None,
        "cluster": row.cluster if row.cluster >= 0 else None,
        **picked(verdict, "fold", "by", "calibration", by="predictor"),
        "memory_bytes": significant(row.memory_bytes),
        "predicted_memory_bytes": significant(verdict.memory_bytes),
        **picked(row, "strategy", "notes"),
    }


def worst(found: Validation, num_worst: int) -> list[ValidatedRow]:
    """The `num_worst` rows with the largest errors, one per execution."""
    seen: set[int] = set()
    worst = []
    for each in sorted(
        (each for each in found.verdicts if each.error is not None), key=lambda each: -(each.error or 0.0)
    ):
        if each.row.execution not in seen:
            seen.add(each.row.execution)
            worst.append(each)
    return worst[:num_worst]
