"""The page of accuracy: how wrong every kind of answer was on what was held out."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.calibration.advice_backtest import ALL_JUMPS, OURS, AdviceErrors
from equipoise.calibration.forecast_record import BacktestSummary, Shipped
from equipoise.calibration.profiles import Profile
from equipoise.decide.combine import PlanRecord
from equipoise.report.blocks import (
    Block,
    Cell,
    Column,
    Page,
    Section,
    Span,
    Table,
    Tile,
    Tiles,
    code,
    note,
    prose,
    strong,
)
from equipoise.report.format import (
    ABSENT,
    TIMES,
    accelerator_name,
    count,
    listed,
    plural,
    printable,
    ratio,
    sentence,
    workload_name,
)
from equipoise.scaling.backtest import BacktestRecord, Errors
from equipoise.study.findings import AccuracyFindings, Findings
from equipoise.units import format_percent

FORECASTS_HELD_OUT: Final = {
    "largest": "the largest size of a group",
    "new_round": "all sizes but the smallest",
}
BASELINES: Final = {"perfect": "Perfect scaling", "power_law": "Power law"}
ALL: Final = "all"


def _record_blocks(findings: Findings) -> tuple[Block, ...]:
    assert findings.record is not None
    curves = "The curves above come from one law that shares its shape across accelerators and rounds. "
    return record_blocks(findings.record, curves)


def record_blocks(record: Shipped, of: str) -> tuple[Block, ...]:
    """How wrong forecasts were, in words and by jump. of: what they are, a sentence with its space."""
    rows = tuple(row for summary in record.summaries for row in _rows(summary))
    return (
        prose(
            of,
            strong("Each result was held out and foretold from strictly earlier rounds"),
            " plus the smaller sizes of the same accelerator in the same round; nothing later entered. "
            "Errors are |predicted / actual - 1|.",
        ),
        *(prose(*_words(summary)) for summary in record.summaries[:1]),
        Table(
            name="record",
            caption="Errors on results held out, by how far the size lies beyond the largest one known",
            columns=(
                Column(title="Held out"),
                Column(title="Jump", meaning="the held-out size over the largest size known"),
                Column(title="Results", is_number=True),
                Column(title="Median", is_number=True, meaning="median error"),
                *(
                    Column(title=title, is_number=True, meaning="its median error")
                    for title in BASELINES.values()
                ),
                Column(title="90 % below", is_number=True, meaning="nine of ten errors were smaller"),
                Column(title="In range", is_number=True, meaning="share of results in the 90 % interval"),
            ),
            rows=rows,
        ),
        note(
            f"Of dataset {printable(record.dataset)}. Every held-out result: ",
            code("equipoise backtest"),
            ".",
        ),
    )


def _words(summary: BacktestSummary) -> tuple[Span, ...]:
    ours = summary.ours
    others = [
        f"{title.lower()} {format_percent(summary.baselines[name].median_abs_error)}"
        for name, title in BASELINES.items()
        if name in summary.baselines
    ]
    coverage = (
        "" if ours.coverage is None else f" The 90 % interval held {format_percent(ours.coverage)} of them."
    )
    return (
        (
            f"Over {count(ours.num_groups)} results, {FORECASTS_HELD_OUT[summary.protocol]} held out: "
            "median error "
        ),
        strong(format_percent(ours.median_abs_error)),
        f" ({', '.join(others)}), nine of ten below {format_percent(ours.p90_abs_error)}.{coverage}",
    )


def _rows(summary: BacktestSummary) -> Iterator[tuple[Cell, ...]]:
    """All held-out results of one protocol, then by jump."""
    ours = summary.ours
    held_out = FORECASTS_HELD_OUT[summary.protocol] + (", its batch given" if summary.given_batch else "")
    yield _record_row(held_out, ALL, ours, summary)
    for jump, errors in ours.by_jump.items():
        yield _record_row(held_out, jump, errors, summary)


def _record_row(
    held_out: str, jump: str, errors: BacktestRecord | Errors, summary: BacktestSummary
) -> tuple[Cell, ...]:
    baselines = [_of(summary.baselines.get(name), jump) for name in BASELINES]
    return (
        Cell(text=held_out, key=held_out),
        Cell(text=jump.replace("x", TIMES) if jump != ALL else ALL, key=jump),
        Cell(text=count(errors.num_groups), key=errors.num_groups),
        _fraction(errors.median_abs_error),
        *map(_fraction, baselines),
        _fraction(errors.p90_abs_error),
        _fraction(errors.coverage),
    )


def _of(baseline: BacktestRecord | None, jump: str) -> float | None:
    """The median error of a baseline at a jump; None where it has none."""
    if baseline is None:
        return None
    if jump == ALL:
        return baseline.median_abs_error
    found = baseline.by_jump.get(jump)
    return None if found is None else found.median_abs_error


def _fraction(value: float | None) -> Cell:
    return Cell(text=ABSENT) if value is None else Cell(text=format_percent(value), key=value)


RECORD_SECTION: Final[Section[Findings]] = Section(
    name="record", title="How wrong such predictions were", needs=("record",), blocks=_record_blocks
)

ADVICE_HELD_OUT: Final = {"largest": "the largest size of a group", "half": "the larger half of the sizes"}
RULES: Final = {
    "largest_known": "Largest known",
    "perfect": "Perfect scaling",
    "power_law": "Power law",
}
ADVISED_COLUMNS: Final = (
    Column(title="Objective", is_header=True),
    Column(title="Held out"),
    Column(title="Groups", is_number=True),
    Column(title="Compared", is_number=True, meaning="both numbers lie inside the sizes"),
    Column(title="Right", is_number=True, meaning="within one doubling of the number found with all data"),
    *(
        Column(title=title, is_number=True, meaning="how often this rule was right instead")
        for title in RULES.values()
    ),
    Column(title="Regret", is_number=True, meaning="median loss in the objective against the number found"),
    Column(title="90 % below", is_number=True, meaning="nine of ten regrets were smaller"),
)


def _advised_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The number of accelerators was advised ",
            strong("without the larger sizes of a group"),
            ", then held against the number that all its sizes give. Where either lies beyond what was "
            "measured, they are not compared.",
        ),
        _table(
            "advised", "Advised by published results, against those found with all data", findings.advised
        ),
        _table(
            "advised_jointly",
            "Advised by published results and the model together, as advise does",
            findings.advised_jointly,
        ),
        note("Every group: ", code("equipoise backtest --advice"), "."),
    )


def _table(name: str, caption: str, found: Sequence[AdviceErrors]) -> Table:
    rows = tuple(_advised_row(errors) for errors in found if errors.jump == ALL_JUMPS)
    return Table(name=name, caption=caption, columns=ADVISED_COLUMNS, rows=rows)


def _advised_row(errors: AdviceErrors) -> tuple[Cell, ...]:
    held_out, ours = ADVICE_HELD_OUT[errors.held_out], errors.ways[OURS]
    rules = (errors.ways[name].within_doubling if name in errors.ways else None for name in RULES)
    return (
        Cell(text=errors.objective, key=errors.objective),
        Cell(text=held_out, key=held_out),
        Cell(text=count(errors.num_groups), key=errors.num_groups),
        Cell(text=count(errors.num_compared), key=errors.num_compared),
        *(_share(value) for value in (ours.within_doubling, *rules, ours.median_regret, ours.p90_regret)),
    )


def _share(value: float | None) -> Cell:
    return Cell(text=ABSENT) if value is None else Cell(text=format_percent(round(value, 4)), key=value)


ADVISED_SECTION: Final[Section[AccuracyFindings]] = Section(
    name="advised", title="Advised numbers of accelerators", needs=("advised",), blocks=_advised_blocks
)

OF: Final = (
    "Forecasts of times at sizes that nobody ran come from one law that shares its shape across "
    "accelerators and rounds. "
)


def _forecasts_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    assert findings.forecasts is not None
    return record_blocks(findings.forecasts, OF)


FORECASTS_SECTION: Final[Section[AccuracyFindings]] = Section(
    name="forecasts", title="Forecasts of published results", needs=("forecasts",), blocks=_forecasts_blocks
)


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


def _own_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    own = findings.own
    assert own is not None
    record = own.record
    worst = (
        "" if record.p90_abs_error is None else f"nine of ten below {format_percent(record.p90_abs_error)}"
    )
    held = "" if record.coverage is None else f"{format_percent(record.coverage)} within their interval"
    tile = Tile(
        label="Your own predictions",
        value=f"{format_percent(record.median_abs_error)} median error",
        detail=" · ".join(part for part in (worst, held) if part),
        words=sentence(
            f"{plural(own.num_measured, 'prediction')} of {own.num_predictions} measured since; "
            f"predicted times were {ratio(own.bias)} of the measured ones (median)."
        ),
    )
    told = note("Each of them: ", code("equipoise record"), ".")
    return (Tiles(items=(tile,)), told)


OWN_SECTION: Final[Section[AccuracyFindings]] = Section(
    name="own", title="Your own ledger", needs=("own",), blocks=_own_blocks
)

KINDS: Final = {"transformer": "Transformers", "other": "Other models"}
PLANS_COLUMNS: Final = (
    Column(title="Models", is_header=True),
    Column(title="Trainings", is_number=True),
    Column(title="Median", is_number=True, meaning="median error, each workload counted alike"),
    Column(title="90 % below", is_number=True, meaning="nine of ten errors were smaller"),
    Column(title="Planned / published", is_number=True, meaning="median ratio: below 1 is too optimistic"),
    Column(title="No plan", is_number=True, meaning="trainings that could not be planned"),
)


def _plans_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "Whole trainings that MLPerf published were planned on the same number of the same accelerators "
            "at the same batch, and ",
            strong("nothing but the samples to the target was learnt from them"),
            ". Each workload counts alike.",
        ),
        Table(
            name="plans",
            caption="Errors of planned times to train",
            columns=PLANS_COLUMNS,
            rows=tuple(map(_plans_row, findings.plans)),
        ),
        note(
            "A submission is tuned for weeks; a plan is the best of the strategies that the model knows. "
            "Plans say their interval from these errors."
        ),
    )


def _plans_row(each: PlanRecord) -> tuple[Cell, ...]:
    names = listed([workload_name(slug) for slug in each.workloads])
    return (
        Cell(
            text=KINDS[each.kind], key=each.kind, detail=f"{plural(len(each.workloads), 'workload')}: {names}"
        ),
        Cell(text=count(each.num_trainings), key=each.num_trainings),
        Cell(text=format_percent(each.median), key=each.median),
        Cell(text=format_percent(each.p90), key=each.p90),
        Cell(text=f"{each.bias:.3g}", key=each.bias),
        Cell(text=count(each.num_unexpressed), key=each.num_unexpressed),
    )


PLANS_SECTION: Final[Section[AccuracyFindings]] = Section(
    name="plans", title="Plans of published trainings", needs=("plans",), blocks=_plans_blocks
)

STEPS_COLUMNS: Final = (
    Column(title="Calibration", is_header=True),
    Column(title="Accelerators"),
    Column(title="Held out", meaning="which rows were left out in turn"),
    Column(title="Measurements", is_number=True),
    Column(title="Median", is_number=True, meaning="median error"),
    Column(title="Mean", is_number=True, meaning="mean absolute percentage error"),
    Column(title="90 % below", is_number=True, meaning="nine of ten errors were smaller"),
    Column(title="In range", is_number=True, meaning="share of measurements within their interval"),
)


def _steps_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The performance model foretells the time of a step from sizes and rates. Each calibration was "
            "fitted to some measurements and ",
            strong("held against others, whole groups of which it had not seen"),
            ". Errors are |predicted / measured - 1|.",
        ),
        Table(
            name="steps",
            caption="Errors of predicted steps on measurements held out",
            columns=STEPS_COLUMNS,
            rows=tuple(map(_steps_row, findings.profiles)),
        ),
        note(
            "Your own rows: ",
            code("equipoise validate FILE --split leave-COLUMN-out"),
            ". Without a calibration of like software the priors speak, and are further off.",
        ),
    )


def _steps_row(each: Profile) -> tuple[Cell, ...]:
    record = each.record
    names = listed([accelerator_name(slug) for slug in each.accelerators])
    return (
        Cell(text=printable(each.name), key=each.name, detail=printable(each.title)),
        Cell(text=names, key=names),
        Cell(text=printable(record.split), key=record.split),
        Cell(text=count(record.num_executions), key=record.num_executions),
        *(
            Cell(text=format_percent(value), key=value)
            for value in (record.median, record.mape, record.p90, record.coverage)
        ),
    )


STEPS_SECTION: Final[Section[AccuracyFindings]] = Section(
    name="steps", title="Steps of the performance model", needs=("profiles",), blocks=_steps_blocks
)

SECTIONS: Final[tuple[Section[AccuracyFindings], ...]] = (
    FORECASTS_SECTION,
    STEPS_SECTION,
    PLANS_SECTION,
    ADVISED_SECTION,
    OWN_SECTION,
)

ACCURACY: Final[Page[AccuracyFindings]] = Page(
    title=lambda _: "How wrong answers were",
    about=lambda _: "The record of every kind of answer",
    headline=headline,
    summary=summary,
    sections=SECTIONS,
    closing=lambda findings: (f"Dataset {printable(findings.dataset)}.",),
)
