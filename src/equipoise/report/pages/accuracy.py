"""The page of accuracy: the errors of every kind of prediction on held-out data."""

from collections.abc import Iterator, Sequence
from typing import Final

from equipoise.calibration.curves import ALL_JUMPS, HELD_OUT, OURS, AdviceErrors, Shipped
from equipoise.decide.combine import PlanRecord
from equipoise.intervals import LEVEL
from equipoise.report.blocks import (
    Block,
    Cell,
    Code,
    ColumnOf,
    Of,
    Page,
    Section,
    Span,
    Strong,
    Table,
    Tile,
    named,
    names,
    note,
    numbers,
    prose,
    table_of,
    tiles,
    words,
)
from equipoise.report.format import TIMES, count, listed, printable, ratio, sentence, workload_name
from equipoise.scaling.backtest import BacktestRecord, BacktestSummary
from equipoise.spec.strategy import software as software_named
from equipoise.study.findings import AccuracyFindings
from equipoise.units import format_percent, plural, tenths

BASELINES: Final = {"perfect": "Perfect scaling", "power_law": "Power law"}
ALL: Final = "all"


def record_blocks(record: Shipped | None) -> tuple[Block, ...]:
    """The errors of predicted times on held-out results, as a summary and by jump in size."""
    assert record is not None
    rows = [row for summary in record.summaries for row in _rows(summary)]
    caption = "Errors on results held out, by how far the size lies beyond the largest one known"
    return (
        prose(
            "Times at sizes without results come from one law that shares its shape across accelerators and "
            "rounds. ",
            Strong("Each result was held out and predicted from strictly earlier rounds"),
            " and the smaller sizes of the same accelerator in the same round. "
            "Errors are |predicted / actual - 1|.",
        ),
        *(prose(*_words(summary)) for summary in record.summaries[:1]),
        table_of("record", _RECORD_COLUMNS, rows, caption=caption),
        note(
            f"Dataset {printable(record.dataset)}.  Every held-out result: ",
            Code("equipoise backtest"),
            ".",
        ),
    )


def _percents(title: str, of: Of, meaning: str | None) -> ColumnOf:
    return numbers(title, of, format_percent, meaning=meaning)


_RECORD_COLUMNS: Final = (
    words("Held out", "held_out"),
    words("Jump", "jump", meaning="the held-out size over the largest size known"),
    numbers("Results", "errors.num_groups"),
    _percents("Median", "errors.median_abs_error", "median error"),
    *(_percents(title, f"baselines.{name}", "its median error") for name, title in BASELINES.items()),
    _percents("90 % below", "errors.p90_abs_error", "90 % of the errors were smaller"),
    _percents("Coverage", "errors.coverage", f"share of results in the {format_percent(LEVEL)} interval"),
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
        else f" The {format_percent(LEVEL)} interval covered {format_percent(ours.coverage)} of them."
    )
    return (
        (f"Over {count(ours.num_groups)} results, {HELD_OUT[summary.protocol]} held out: median error "),
        Strong(format_percent(ours.median_abs_error)),
        f" ({', '.join(others)}), 90 % below {format_percent(ours.p90_abs_error)}.{coverage}",
    )


def _rows(summary: BacktestSummary) -> Iterator[dict[str, object]]:
    """A row for all held-out results of one protocol, then one per jump."""
    ours = summary.pooled_law
    held_out = HELD_OUT[summary.protocol] + (", global batch known" if summary.given_batch else "")
    for jump, errors in {ALL: ours, **ours.by_jump}.items():
        yield {
            "held_out": held_out,
            "jump": jump.replace("x", TIMES) if jump != ALL else ALL,
            "errors": errors,
            "baselines": {name: _baseline_error(summary.baselines.get(name), jump) for name in BASELINES},
        }


def _baseline_error(baseline: BacktestRecord | None, jump: str) -> float | None:
    """The median error of a baseline at a jump; None if there is none."""
    if baseline is None:
        return None
    if jump == ALL:
        return baseline.median_abs_error
    found = baseline.by_jump.get(jump)
    return None if found is None else found.median_abs_error


RULES: Final = {"largest_known": "Largest known", **BASELINES}


def _method(name: str, field: str) -> Of:
    """A field of the errors of a rule; None if the rule was not compared."""
    return lambda errors: getattr(errors.methods[name], field) if name in errors.methods else None


def _shares(title: str, of: Of, meaning: str) -> ColumnOf:
    return numbers(title, of, lambda share: format_percent(round(share, 4)), meaning=meaning)


ADVISED_COLUMNS: Final = (
    names("Objective", "objective"),
    words("Held out", lambda errors: HELD_OUT[errors.held_out]),
    numbers("Groups", "num_groups"),
    numbers("Compared", "num_compared", meaning="both numbers lie within the measured sizes"),
    _shares(
        "Right", _method(OURS, "within_doubling"), "within one doubling of the number found with all data"
    ),
    *(
        _shares(title, _method(name, "within_doubling"), "how often this simple rule was right")
        for name, title in RULES.items()
    ),
    _shares(
        "Regret", _method(OURS, "median_regret"), "median loss in the objective against the number found"
    ),
    _shares("90 % below", _method(OURS, "p90_regret"), "90 % of the regrets were smaller"),
)


def _advised_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The number of accelerators was advised ",
            Strong("without the larger sizes of a group"),
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
        note("Every group: ", Code("equipoise backtest --advice"), "."),
    )


def _table(name: str, caption: str, found: Sequence[AdviceErrors]) -> Table:
    shown = [errors for errors in found if errors.jump == ALL_JUMPS]
    return table_of(name, ADVISED_COLUMNS, shown, caption=caption)


def _headline(findings: AccuracyFindings) -> str:
    medians_of = []
    if findings.forecasts is not None and findings.forecasts.summaries:
        ours = findings.forecasts.summaries[0].pooled_law
        medians_of.append(f"predicted published results {tenths(ours.median_abs_error)}")
    steps = [each.record.median for each in findings.profiles]
    plans = [each.median for each in findings.plans]
    for what, medians in (("predicted steps", steps), ("plans of whole trainings", plans)):
        if medians:
            low, high = map(tenths, (min(medians), max(medians)))
            medians_of.append(f"{what} {low} to {high}")
    if not medians_of:
        return "This installation has no accuracy records"
    return f"Median errors on held-out data: {listed(medians_of)}"


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
    return (tiles((tile,)), note("All of them: ", Code("equipoise record"), "."))


KINDS: Final = {
    "transformer": ("Transformers", "workload", "workloads"),
    "other": ("Other models", "workload", "workloads"),
    "dense pretraining": ("Pretrainings of dense models", "family", "families"),
    "expert pretraining": ("Pretrainings of mixtures of experts", "family", "families"),
}


def _models(each: PlanRecord) -> Cell:
    title, one, many = KINDS[each.kind]
    slugs = listed([workload_name(slug) for slug in each.workloads])
    return named(title, detail=f"{plural(len(each.workloads), one, many)}: {slugs}")


PLANS_COLUMNS: Final = (
    names("Models", _models),
    numbers("Trainings", "num_trainings"),
    _percents("Median", "median", "median error, each workload weighted equally"),
    _percents("90 % below", "p90", "90 % of the errors were smaller"),
    numbers(
        "Planned / published", "bias", "{:.3g}".format, meaning="median ratio: below 1 is too optimistic"
    ),
    numbers("No plan", "num_unexpressed", meaning="trainings that could not be planned"),
)


def _plans_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "Whole trainings that MLPerf published were planned on the same number of the same accelerators "
            "at the same batch, and ",
            Strong("only the samples to the target were taken from them"),
            ". Each workload has the same weight. Pretrainings of language models were planned on the tokens "
            "that their papers state, and each family of models has the same weight.",
        ),
        table_of("plans", PLANS_COLUMNS, findings.plans, caption="Errors of planned times to train"),
        note(
            "A submission is tuned for weeks; a plan is the best of the strategies that the model knows. "
            "Planned times of pretrainings are divided by their ratio, planned / published: evaluation, "
            "checkpoints and restarts take time that steps do not. Their errors are those after division by "
            "the ratio of all other families. The intervals of plans come from these errors."
        ),
    )


STEPS_COLUMNS: Final = (
    names("Software", lambda each: named(each.name, detail=software_named(each.name).title)),
    numbers("Measurements", "record.num_executions"),
    _percents("Median", "record.median", "median error"),
    _percents("Mean", "record.mape", "mean absolute percentage error"),
    _percents("90 % below", "record.p90", "90 % of the errors were smaller"),
    _percents("Coverage", "record.coverage", "share of measurements in their interval"),
)


def _steps_blocks(findings: AccuracyFindings) -> tuple[Block, ...]:
    return (
        prose(
            "The performance model predicts the time of a step from sizes and rates. Its parameters by "
            "software were fitted to published steps, and ",
            Strong("tested with each source left out whole"),
            ". Errors are |predicted / measured - 1|. Where rows differ only in layers and micro-batches, "
            "the first in each source file counts; README.md and docs/understand/accuracy.md count the first "
            "in the shipped table, so their figures differ a little.",
        ),
        table_of(
            "steps",
            STEPS_COLUMNS,
            findings.profiles,
            caption="Errors of predicted steps on measurements held out",
        ),
        note(
            "Your own rows: ",
            Code("equipoise validate FILE --split leave-COLUMN-out"),
            ". Without a calibration for similar software the priors are used, with larger errors.",
        ),
    )


ACCURACY: Final[Page[AccuracyFindings]] = Page(
    title=lambda _: "Accuracy",
    about=lambda _: "Errors of every kind of prediction on held-out data",
    headline=_headline,
    summary=lambda _: (
        "Every prediction states the errors of its kind of prediction on held-out data.",
        "Whole groups are held out, not random rows, and no later data are used.",
    ),
    sections=(
        Section(
            "forecasts",
            "Predictions of published results",
            lambda findings: record_blocks(findings.forecasts),
            needs=("forecasts",),
        ),
        Section("steps", "Steps of the performance model", _steps_blocks, needs=("profiles",)),
        Section("plans", "Plans of published trainings", _plans_blocks, needs=("plans",)),
        Section("advised", "Advised numbers of accelerators", _advised_blocks, needs=("advised",)),
        Section("ledger", "Your ledger", _ledger_blocks, needs=("own",)),
    ),
    closing=lambda findings: (f"Dataset {printable(findings.dataset)}.",),
)
