"""The page of a validation: errors by file and fold, the worst rows, and why rows are not expressed."""

from collections.abc import Iterator, Mapping
from typing import Final

from equipoise.calibration.accuracy import TimeErrors
from equipoise.calibration.validate import Validation
from equipoise.report.blocks import Block, Cell, Column, Page, Section, Table, bullets, named, note, number
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


def _errors_table(title: str, by_name: Mapping[str, TimeErrors]) -> Table:
    return Table(
        name=f"validation-{title.lower().replace(' ', '-')}",
        caption=f"Errors by {title.lower()}",
        columns=(
            Column(title=title, is_header=True),
            Column(title="Runs", is_number=True),
            Column(title="Clusters", is_number=True),
            Column(title="Mean", is_number=True),
            Column(title="Median", is_number=True),
            Column(title="90 %", is_number=True, meaning="nine tenths of the errors are at most this"),
            Column(title="In range", is_number=True, meaning="executions within their intervals"),
        ),
        rows=tuple(
            (
                named(name),
                number(each.num_executions),
                number(each.num_clusters),
                *(
                    number(share, format_percent)
                    for share in (each.mape, each.median, each.p90, each.coverage)
                ),
            )
            for name, each in by_name.items()
        ),
    )


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


def _worst_table(found: Validation, num_worst: int) -> Table:
    return Table(
        name="validation-worst",
        caption="The rows with the largest errors",
        columns=(
            Column(title="Row", is_header=True),
            Column(title="Error", is_number=True),
            Column(title="Predicted", is_number=True),
            Column(title="Measured", is_number=True),
            Column(title="Unit"),
        ),
        rows=tuple(
            (
                named(
                    f"{each.row.file}:{each.row.row}",
                    detail=f"{printable(each.row.workload)} {TIMES} {count(each.row.num_accelerators)}",
                ),
                number(each.error, format_percent),
                number(each.predicted, "{:.4g}".format),
                number(each.row.measured, "{:.4g}".format),
                Cell(text=printable(each.row.unit)),
            )
            for each in worst(found, num_worst)
        ),
    )


def _reasons_blocks(found: Validation) -> tuple[Block, ...]:
    rest = len(found.reasons) - _MOST_REASONS
    return (
        Table(
            name="validation-reasons",
            caption="Why rows are not expressed",
            columns=(Column(title="Reason", is_header=True), Column(title="Rows", is_number=True)),
            rows=tuple(
                (named(reason), number(num_rows)) for reason, num_rows in found.reasons[:_MOST_REASONS]
            ),
        ),
        note(f"And {plural(rest, 'other reason')}." if rest > 0 else ""),
    )


def validation_page(num_worst: int = NUM_WORST) -> Page[Validation]:
    """The page, with so many of the worst rows."""
    worst_section: Section[Validation] = Section(
        name="worst",
        title="Largest errors",
        needs=("verdicts",),
        blocks=lambda found: (_worst_table(found, num_worst),),
    )
    return Page(
        title=_headline,
        about=_about,
        headline=_headline,
        summary=lambda _: (_MEANING,),
        sections=(
            Section(name="errors", title="Errors", needs=("by_file",), blocks=_errors_blocks),
            *((worst_section,) if num_worst else ()),
            Section(
                name="reasons",
                title="Rows not expressed",
                needs=("reasons",),
                blocks=_reasons_blocks,
                is_extra=True,
            ),
        ),
        brief=lambda found, _: _errors_blocks(found),
    )
