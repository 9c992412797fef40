"""The page of a validation: errors by file and fold, the worst rows, and why rows are not expressed."""

from collections.abc import Iterator, Mapping
from typing import Final

from equipoise.calibration.accuracy import TimeErrors
from equipoise.calibration.validate import Validation
from equipoise.report.blocks import (
    Block,
    Page,
    Section,
    Table,
    bullets,
    by_name,
    named,
    names,
    note,
    numbers,
    table_of,
    words,
)
from equipoise.report.format import TIMES, count, listed, plural, printable, sentence
from equipoise.report.measured_json import worst
from equipoise.units import format_percent

NUM_WORST: Final = 8  # rows shown unless stated
_MOST_REASONS: Final = 8
_MOST_FOLDS: Final = 24
_MEANING: Final = "Error: |predicted time / measured time - 1|, each cluster and each execution counted once."


def _about(found: Validation) -> str:
    """What was compared with what."""
    given = f", {count(found.num_given)} given for the prediction of others" if found.num_given else ""
    runs = f"{plural(found.num_executions, 'execution')} in {plural(found.errors.num_clusters, 'cluster')}"
    how = f"each value of {found.split[6:-4]} held out" if found.split != "none" else "no split"
    on = f"calibrated on {listed(found.calibrated_on)}" if found.calibrated_on else _basis(found)
    rows = f"{plural(len(found.verdicts), 'row')}: {count(found.num_modelled)} expressed{given}"
    return sentence(f"{rows}; {runs}; {how}; {on}")


def _basis(found: Validation) -> str:
    """What rows were predicted by where no file was calibrated on: profiles, the priors, or other folds."""
    if found.split != "none":
        return "calibrated on all others"
    names = dict.fromkeys(each.profile for each in found.verdicts if each.predicted is not None)
    return f"predicted by {listed([f'the profile {name}' if name else 'the priors' for name in names])}"


def _headline(found: Validation) -> str:
    sample = "; IN SAMPLE: fitted to these rows" if found.in_sample else ""
    return (
        f"Off by {format_percent(round(found.errors.median, 3))} (median) over "
        f"{plural(found.num_executions, 'execution')}{sample}"
    )


def _errors_blocks(found: Validation) -> tuple[Block, ...]:
    by_file = dict(found.by_file)
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
    """Errors of memory, and what choosing by prediction costs."""
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


_WORST_COLUMNS: Final = (
    names(
        "Row",
        lambda each: named(
            f"{each.row.file}:{each.row.row}",
            detail=f"{printable(each.row.workload)} {TIMES} {count(each.row.num_accelerators)}",
        ),
    ),
    numbers("Error", "error", format_percent),
    numbers("Predicted", "predicted", "{:.4g}".format),
    numbers("Measured", "row.measured", "{:.4g}".format),
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


def validation_page(num_worst: int = NUM_WORST) -> Page[Validation]:
    """The page, with so many of the worst rows."""

    def worst_blocks(found: Validation) -> tuple[Block, ...]:
        rows = worst(found, num_worst)
        return (
            table_of("validation-worst", _WORST_COLUMNS, rows, caption="The rows with the largest errors"),
        )

    return Page(
        title=_headline,
        about=_about,
        headline=_headline,
        summary=lambda _: (_MEANING,),
        sections=(
            Section("errors", "Errors", _errors_blocks, needs=("by_file",)),
            *((Section("worst", "Largest errors", worst_blocks, needs=("verdicts",)),) if num_worst else ()),
            Section("reasons", "Rows not expressed", _reasons_blocks, needs=("reasons",), is_extra=True),
        ),
        brief=lambda found, _: _errors_blocks(found),
    )
