"""The page of accuracy: the errors of every kind of prediction on held-out data."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.calibration.forecast_record import ALL_JUMPS, OURS, AdviceErrors, BacktestSummary, Shipped
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
    named,
    note,
    number,
    prose,
    strong,
)
from equipoise.report.format import (
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
from equipoise.study.findings import AccuracyFindings
from equipoise.units import format_percent

TIMES_HELD_OUT: Final = {
    "largest": "the largest size of a group",
    "new_round": "all sizes but the smallest",
}
BASELINES: Final = {"perfect": "Perfect scaling", "power_law": "Power law"}
ALL: Final = "all"


def record_blocks(record: Shipped | None) -> tuple[Block, ...]:
    """The errors of predicted times on held-out results, in words and by jump."""
    assert record is not None
    rows = tuple(row for summary in record.summaries for row in _rows(summary))
    return (
        prose(
            "Times at sizes without results come from one law that shares its shape across accelerators and "
            "rounds. ",
            strong("Each result was held out and predicted from strictly earlier rounds"),
            " and the smaller sizes of the same accelerator in the same round. "
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
                Column(title="90 % below", is_number=True, meaning="90 % of the errors were smaller"),
                Column(title="Coverage", is_number=True, meaning="share of results in the 90 % interval"),
            ),
            rows=rows,
        ),
        note(
            f"Dataset {printable(record.dataset)}.  Every held-out result: ",
            code("equipoise backtest"),
            ".",
        ),
    )


def _words(summary: BacktestSummary) -> tuple[Span, ...]:
    ours = summary.pooled_law
    others = [
        f"{title.lower()} {format_percent(summary.baselines[name].median_abs_error)}"
        for name, title in BASELINES.items()
        if name in summary.baselines
    ]
    coverage = (
        ""
        if ours.coverage is None
        else f" The 90 % interval covered {format_percent(ours.coverage)} of them."
    )
    return (
        (
            f"Over {count(ours.num_groups)} results, {TIMES_HELD_OUT[summary.protocol]} held out: "
            "median error "
        ),
        strong(format_percent(ours.median_abs_error)),
        f" ({', '.join(others)}), 90 % below {format_percent(ours.p90_abs_error)}.{coverage}",
    )


def _rows(summary: BacktestSummary) -> Iterator[tuple[Cell, ...]]:
    """All held-out results of one protocol, then by jump."""
    ours = summary.pooled_law
    held_out = TIMES_HELD_OUT[summary.protocol] + (", global batch known" if summary.given_batch else "")
    yield _record_row(held_out, ALL, ours, summary)
    for jump, errors in ours.by_jump.items():
        yield _record_row(held_out, jump, errors, summary)


def _record_row(
    held_out: str, jump: str, errors: BacktestRecord | Errors, summary: BacktestSummary
) -> tuple[Cell, ...]:
    baselines = [_of(summary.baselines.get(name), jump) for name in BASELINES]
    return (
        named(held_out),
        Cell(text=jump.replace("x", TIMES) if jump != ALL else ALL, key=jump),
        number(errors.num_groups),
        number(errors.median_abs_error, format_percent),
        *(number(each, format_percent) for each in baselines),
        number(errors.p90_abs_error, format_percent),
        number(errors.coverage, format_percent),
    )


def _of(baseline: BacktestRecord | None, jump: str) -> float | None:
    """The median error of a baseline at a jump; None where it has none."""
    if baseline is None:
        return None
    if jump == ALL:
        return baseline.median_abs_error
    found = baseline.by_jump.get(jump)
    return None if found is None else found.median_abs_error


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
    Column(title="Compared", is_number=True, meaning="both numbers lie within the measured sizes"),
    Column(title="Right", is_number=True, meaning="within one doubling of the number found with all data"),
    *(
        Column(title=title, is_number=True, meaning="how often this simple rule was right")
        for title in RULES.values()
    ),
    Column(title="Regret", is_number=True, meaning="median loss in the objective against the number found"),
    Column(title="90 % below", is_number=True, meaning="90 % of the regrets were smaller"),
)


def _advised_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The number of accelerators was advised ",
            strong("without the larger sizes of a group"),
            ", then compared with the number that all its sizes give. Where either is beyond the measured "
            "sizes, they are not compared.",
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
    held_out, ours = ADVICE_HELD_OUT[errors.held_out], errors.methods[OURS]
    rules = (errors.methods[name].within_doubling if name in errors.methods else None for name in RULES)
    return (
        named(errors.objective),
        named(held_out),
        number(errors.num_groups),
        number(errors.num_compared),
        *(_share(value) for value in (ours.within_doubling, *rules, ours.median_regret, ours.p90_regret)),
    )


def _share(value: float | None) -> Cell:
    return number(value, lambda share: format_percent(round(share, 4)))


def _headline(findings: AccuracyFindings) -> str:
    """The median error of each kind of prediction, in one sentence."""
    medians_of = []
    if findings.forecasts is not None and findings.forecasts.summaries:
        ours = findings.forecasts.summaries[0].pooled_law
        medians_of.append(f"predicted published results {format_percent(round(ours.median_abs_error, 3))}")
    if findings.profiles:
        medians = sorted(each.record.median for each in findings.profiles)
        ends = [format_percent(round(value, 3)) for value in (medians[0], medians[-1])]
        medians_of.append(f"predicted steps {ends[0]} to {ends[-1]}")
    if findings.plans:
        medians = sorted(each.median for each in findings.plans)
        ends = [format_percent(round(value, 3)) for value in (medians[0], medians[-1])]
        medians_of.append(f"plans of whole trainings {ends[0]} to {ends[-1]}")
    if not medians_of:
        return "This installation has no accuracy records"
    return f"Median errors on held-out data: {listed(medians_of)}"


def _summary(_: AccuracyFindings) -> tuple[str, ...]:
    """How the errors were measured."""
    return (
        "Every prediction states the errors of its kind of prediction on held-out data.",
        "Whole groups are held out, not random rows, and no later data are used.",
    )


def _ledger_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    ledger = findings.own
    assert ledger is not None
    record = ledger.record
    worst = "" if record.p90_abs_error is None else f"90 % below {format_percent(record.p90_abs_error)}"
    covered = "" if record.coverage is None else f"{format_percent(record.coverage)} within their interval"
    tile = Tile(
        label="Your own predictions",
        value=f"{format_percent(record.median_abs_error)} median error",
        detail=" · ".join(filter(None, (worst, covered))),
        words=sentence(
            f"{plural(ledger.num_measured, 'prediction')} of {ledger.num_predictions} measured since; "
            f"predicted times were {ratio(ledger.bias)} times the measured ones (median)."
        ),
    )
    return (Tiles(items=(tile,)), note("All of them: ", code("equipoise record"), "."))


KINDS: Final = {
    "transformer": ("Transformers", "workload"),
    "other": ("Other models", "workload"),
    "pretraining": ("Pretrainings", "language model"),
}
PLANS_COLUMNS: Final = (
    Column(title="Models", is_header=True),
    Column(title="Trainings", is_number=True),
    Column(title="Median", is_number=True, meaning="median error, each workload weighted equally"),
    Column(title="90 % below", is_number=True, meaning="90 % of the errors were smaller"),
    Column(title="Planned / published", is_number=True, meaning="median ratio: below 1 is too optimistic"),
    Column(title="No plan", is_number=True, meaning="trainings that could not be planned"),
)


def _plans_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "Whole trainings that MLPerf published were planned on the same number of the same accelerators "
            "at the same batch, and ",
            strong("only the samples to the target were taken from them"),
            ". Each workload has the same weight. Pretrainings of language models were planned on the tokens "
            "that their papers state.",
        ),
        Table(
            name="plans",
            caption="Errors of planned times to train",
            columns=PLANS_COLUMNS,
            rows=tuple(map(_plans_row, findings.plans)),
        ),
        note(
            "A submission is tuned for weeks; a plan is the best of the strategies that the model knows. "
            "Planned times of pretrainings are divided by their ratio, planned / published: evaluation, "
            "checkpoints and restarts take time that steps do not. Their errors are those after it, on the "
            "same pretrainings. The intervals of plans come from these errors."
        ),
    )


def _plans_row(each: PlanRecord) -> tuple[Cell, ...]:
    title, one = KINDS[each.kind]
    names = listed([workload_name(slug) for slug in each.workloads])
    return (
        named(title, detail=f"{plural(len(each.workloads), one)}: {names}"),
        number(each.num_trainings),
        number(each.median, format_percent),
        number(each.p90, format_percent),
        number(each.bias, "{:.3g}".format),
        number(each.num_unexpressed),
    )


STEPS_COLUMNS: Final = (
    Column(title="Calibration", is_header=True),
    Column(title="Accelerators"),
    Column(title="Held out", meaning="which rows were left out in turn"),
    Column(title="Measurements", is_number=True),
    Column(title="Median", is_number=True, meaning="median error"),
    Column(title="Mean", is_number=True, meaning="mean absolute percentage error"),
    Column(title="90 % below", is_number=True, meaning="90 % of the errors were smaller"),
    Column(title="Coverage", is_number=True, meaning="share of measurements in their interval"),
)


def _steps_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The performance model predicts the time of a step from sizes and rates. Each calibration was "
            "fitted to some measurements and ",
            strong("tested on others, whole groups of which were held out"),
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
            ". Without a calibration for similar software the priors are used, with larger errors.",
        ),
    )


def _steps_row(each: Profile) -> tuple[Cell, ...]:
    record = each.record
    names = listed([accelerator_name(slug) for slug in each.accelerators])
    return (
        named(each.name, detail=printable(each.title)),
        named(names),
        named(record.split),
        number(record.num_executions),
        *(
            number(value, format_percent)
            for value in (record.median, record.mape, record.p90, record.coverage)
        ),
    )


ACCURACY: Final[Page[AccuracyFindings]] = Page(
    title=lambda _: "Accuracy",
    about=lambda _: "Errors of every kind of prediction on held-out data",
    headline=_headline,
    summary=_summary,
    sections=(
        Section(
            name="forecasts",
            title="Predictions of published results",
            needs=("forecasts",),
            blocks=lambda findings: record_blocks(findings.forecasts),
        ),
        Section(
            name="steps", title="Steps of the performance model", needs=("profiles",), blocks=_steps_blocks
        ),
        Section(name="plans", title="Plans of published trainings", needs=("plans",), blocks=_plans_blocks),
        Section(
            name="advised",
            title="Advised numbers of accelerators",
            needs=("advised",),
            blocks=_advised_blocks,
        ),
        Section(name="ledger", title="Your ledger", needs=("own",), blocks=_ledger_blocks),
    ),
    closing=lambda findings: (f"Dataset {printable(findings.dataset)}.",),
)
