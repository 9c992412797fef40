"""The page of a sweep, with its JSON document: steps, speedups, phases, resources, trainings, failures."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from equipoise.bench.phases import EXPOSED, PARTS, TOTAL, overlapped_fraction
from equipoise.bench.summary import (
    LEVEL,
    UTILISATION,
    ConfigurationSummary,
    Spread,
    interval_method,
    run_id,
    timed_run,
)
from equipoise.bench.trial import FAILED, SUCCESS, FinishedTrial, Trial
from equipoise.diagnose.sweeps import (
    PLAIN,
    Failure,
    FalseDifferences,
    Judgement,
    Swept,
    false_difference_words,
    is_slower,
    trained,
)
from equipoise.errors import EvidenceError
from equipoise.report import format as amounts
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    ColumnOf,
    Heading,
    Page,
    Panels,
    Section,
    Span,
    Strong,
    bullets,
    facts,
    more_note,
    named,
    names,
    note,
    numbers,
    prose,
    table_of,
    words,
)
from equipoise.report.charts import Axis, Chart, Level, Mark, Series, series_mark, series_of
from equipoise.report.format import TIMES, count, printable, ratio, sentence
from equipoise.report.json import missing_fields, picked, plain
from equipoise.report.pages.breakdowns import PHASES, PHASES_INTRO, milliseconds, spread_cell, step_chart
from equipoise.report.pages.find import WAY_NAMES
from equipoise.units import (
    MIB,
    format_duration,
    format_milliseconds,
    format_percent,
    format_si,
    plural,
    significant,
)

_Subject = tuple[str, str, str]
_FEWEST_SIZES: Final = 2
_MOST_BARS: Final = 16
# Of one screen.
_MOST_ROWS: Final = 12
_MOST_SUBJECTS: Final = 3
_MOST_FAILURES: Final = 3


# --- head


def _headline(found: Swept) -> str:
    now, failed = found.progress, len(found.failed)
    done = f"{now.num_finished} of {plural(now.num_planned, 'run')}"
    state = "complete" if now.is_whole else "running" if now.is_running else "stopped"
    lost = f", {failed} failed" if failed else ""
    return f"{printable(found.name)}: {done}{lost}; {state}"


def _summary(found: Swept) -> tuple[str, ...]:
    now = found.progress
    left = () if now.left_s is None else (f"About {format_duration(now.left_s)} left at the current rate.",)
    stopped = not now.is_whole and not now.is_running
    resume = ("The same command with --resume continues it.",) if stopped else ()
    every = ("Every run has failed so far.",) if found.finished and found.refusal else ()
    return (*left, *resume, *every, *map(sentence, found.meanings))


def _closing(found: Swept) -> tuple[str, ...]:
    return (
        "Measured on the machines of this sweep, under the conditions stated in its files.",
        *(f"{label}: {words}" for label, words in _facts(found)),
    )


def _facts(found: Swept) -> Iterator[tuple[str, str]]:
    """Settings, files and the A/A test."""
    settings = ", ".join(f"{name} {value}" for name, value in found.settings.items())
    if settings:
        yield "Settings", sentence(f"{settings}.")
    if found.false_differences is not None:
        yield "A/A test", false_difference_words(found.false_differences)
    yield "Files", sentence(f"{found.progress.folder}: runs, steps and scores as Parquet.")


# --- steps


def _by_subject(
    rows: Sequence[Judgement], wanted: Callable[[Judgement], object]
) -> list[tuple[_Subject, list[Judgement]]]:
    """The configurations that pass `wanted`, grouped by workload, precision and device, in order."""
    return [(each, list(group)) for each, group in groupby(filter(wanted, rows), attrgetter("subject"))]


def _timed(found: Swept) -> list[tuple[_Subject, list[Judgement]]]:
    return _by_subject(found.judgements, lambda each: each.summary.timed)


def _subject_name(subject: _Subject) -> str:
    return ", ".join(map(printable, subject))


def _trial_words(trial: Trial) -> str:
    """Strategy, number of ranks and batch of a trial."""
    return f"{printable(trial.method)} on {plural(trial.num_ranks, 'rank')}, batch {trial.batch_samples}"


def _steps_blocks(found: Swept) -> tuple[Block, ...]:
    blocks = [block for subject, rows in _timed(found) for block in _subject_blocks(subject, rows)]
    if not blocks:
        return (prose("No timed run has finished yet."),)
    return (*blocks, note(_method(found)))


def _method(found: Swept) -> str:
    """How intervals were computed, and the number of outliers."""
    timed = [each.summary for each in found.judgements if each.summary.timed]
    methods = Counter(interval_method(len(each.timed)) for each in timed)
    by = " or ".join(method for method in methods if method)
    intervals = f"ranges at {format_percent(LEVEL)} by {by}" if by else "without ranges: one repetition each"
    num_outliers = sum(run.num_outliers for each in timed for run in each.timed)
    num_steps = sum(run.num_steps for each in timed for run in each.timed)
    return (
        f"Medians over repetitions in fresh processes; {intervals}. "
        f"{plural(num_outliers, 'outlier')} among {count(num_steps)} steps, kept."
    )


def _subject_blocks(subject: _Subject, rows: Sequence[Judgement]) -> tuple[Block, ...]:
    name, identifier = _subject_name(subject), f"steps-{'-'.join(subject)}"
    charts = _charts(identifier, name, rows)
    return (
        Heading(name=f"of-{identifier}", text=name),
        Panels(charts=charts, legend="Strategy"),
        table_of(identifier, _COLUMNS, rows, caption=plural(len(rows), "configuration")),
    )


_STRATEGY: Final = names("Strategy", lambda each: named(each.summary.trial.method, badge=_badge(each)))
_RANKS: Final = numbers("N", "summary.trial.num_ranks", meaning="number of ranks")
_BATCH: Final = numbers("Batch", "summary.trial.batch_samples", meaning="samples per step over all ranks")
_RATE: Final = numbers("Samples/s", "summary.samples_per_s.value", ratio, meaning="of all ranks together")
_COLUMNS: Final = (
    _STRATEGY,
    _RANKS,
    _BATCH,
    numbers(
        "Step, ms",
        lambda each: milliseconds(each.summary.step_s),
        meaning="median over repetitions; its range below",
    ),
    _RATE,
    numbers(
        "Speedup",
        lambda each: _factor(None if each.is_alone else each.speedup),
        meaning="samples per second over those of one device",
    ),
    numbers(
        "Efficiency",
        lambda each: None if each.is_alone else each.efficiency,
        amounts.share,
        meaning="speedup over the number of ranks",
    ),
    numbers(
        "Over ddp",
        lambda each: _factor(None if each.summary.trial.method == PLAIN else each.over_plain),
        meaning="samples per second over those of plain ddp",
    ),
    numbers("Runs", lambda each: len(each.summary.timed)),
)


def _badge(each: Judgement) -> Badge | None:
    """The first caveat that applies to a row; None if there is none."""
    summary = each.summary
    found = (
        (summary.failed, Badge(text=f"{len(summary.failed)} failed", tone="bad")),
        (summary.num_disturbed, Badge(text="busy", tone="bad")),
        (not summary.is_steady, Badge(text="not steady", tone="quiet")),
        (any(summary.outlying), Badge(text="outlier", tone="quiet")),
        (not summary.parts_sum, Badge(text="phases off by over 5 %", tone="quiet")),
        (not each.is_alone and is_slower(each), Badge(text="slower", tone="bad")),
    )
    return next((badge for holds, badge in found if holds), None)


def _charts(identifier: str, name: str, rows: Sequence[Judgement]) -> tuple[Chart, ...]:
    """A chart of speedup against ranks, if several sizes were compared with one device."""
    several = [each for each in rows if each.speedup is not None and not each.is_alone]
    if len({each.summary.trial.num_ranks for each in several}) < _FEWEST_SIZES:
        return ()
    words = "; ".join(f"{_trial_words(each.summary.trial)}: {_speedup(each)}" for each in several)
    methods = sorted({each.summary.trial.method for each in several})
    return (
        Chart(
            name=identifier,
            title="Speedup over one device",
            subtitle="samples per second of all ranks over those of one",
            alternative=sentence(f"{name}. {words}."),
            x=Axis(title="ranks", is_log=True),
            y=Axis(title="speedup", starts_at_zero=True),
            series=tuple(
                _series([each for each in several if each.summary.trial.method == method], series_mark(place))
                for place, method in enumerate(methods)
            ),
            level=Level(y=1.0, text="one device"),
        ),
    )


def _series(rows: Sequence[Judgement], mark: Mark) -> Series:
    ordered = sorted(rows, key=lambda each: each.summary.trial.num_ranks)
    points = (
        (float(each.summary.trial.num_ranks), each.speedup.value, _hover(each))
        for each in ordered
        if each.speedup is not None
    )
    is_line = len({each.summary.trial.num_ranks for each in ordered}) == len(ordered) >= _FEWEST_SIZES
    return series_of(printable(ordered[0].summary.trial.method), mark, points, is_line=is_line)


def _hover(each: Judgement) -> tuple[str, ...]:
    step_s = each.summary.step_s
    step = () if step_s is None else (f"{format_milliseconds(step_s.value)} ms per step",)
    return (_trial_words(each.summary.trial), f"{_speedup(each)} times one device", *step)


def _speedup(each: Judgement) -> str:
    return _on_one_line(_factor(each.speedup)).text


def _factor(found: Spread | None) -> Cell:
    """A ratio of throughputs with its range below."""
    return spread_cell(found, "{:,.2f}".format)


# --- where a step goes


def _phases_blocks(found: Swept) -> tuple[Block, ...]:
    split = _by_subject(
        found.judgements, lambda each: any(each.summary.phases.get(phase) for phase in PHASES)
    )
    if not split:
        return (prose("No run has reported phases yet."),)
    is_cut = any(len(rows) > _MOST_BARS for _, rows in split)
    return (
        prose(PHASES_INTRO),
        *(_phases_panel(subject, rows[:_MOST_BARS]) for subject, rows in split),
        note(f"The first {_MOST_BARS} configurations are shown." if is_cut else ""),
    )


def _phases_panel(subject: _Subject, rows: Sequence[Judgement]) -> Panels:
    several = len({each.summary.trial.batch_samples for each in rows}) > 1
    trials = [each.summary.trial for each in rows]
    below = [
        f"{trial.num_ranks} {printable(trial.method)}{f' {trial.batch_samples}' if several else ''}"
        for trial in trials
    ]
    chart = step_chart(
        f"phases-{'-'.join(subject)}",
        f"A step of {_subject_name(subject)}",
        f"ranks, strategy{', batch' if several else ''}",
        [(category, each.summary.phases) for category, each in zip(below, rows, strict=True)],
        names=tuple(map(_trial_words, trials)),
    )
    return Panels(charts=(chart,), legend="Phase")


# --- resources, trainings, failures


def _overlapped(each: Judgement) -> float | None:
    phases = each.summary.phases
    return overlapped_fraction(phases.get(EXPOSED), phases.get(TOTAL))


# By title: the field of timed runs, and how it is formatted.
_RESOURCES: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "MiB per rank": ("memory_bytes", lambda value: f"{value / MIB:,.0f}"),
    "CPU use": ("cpu_fraction", amounts.share),
    "Accelerator use": ("accelerator_fraction", amounts.share),
    "Network": ("network_byte_per_s", lambda value: format_si(value, "B/s")),
    "J per step": ("energy_j", lambda value: f"{value:.3g}"),
}


def _resource(title: str) -> ColumnOf:
    of, form = _RESOURCES[title]
    return numbers(title, lambda row: row.summary.median_of(of), form)


def _energy_reason(summary: ConfigurationSummary) -> str | None:
    """Why no energy was measured; None if it was measured."""
    if not summary.timed or summary.median_of("energy_j") is not None:
        return None
    return next((run.energy_reason for run in summary.timed if run.energy_reason), "not measured")


def _resources_blocks(found: Swept) -> tuple[Block, ...]:
    """Memory, utilisation and energy of a step, and a note on what was not measured."""
    rows = [each for _, group in _timed(found) for each in group]
    measured = [
        title
        for title, (of, _) in _RESOURCES.items()
        if any(row.summary.median_of(of) is not None for row in rows)
    ]
    missing = [title for title in _RESOURCES if title not in measured]
    reasons = (_energy_reason(row.summary) for row in rows)
    why = next((reason for reason in reasons if reason), None) if "J per step" in missing else None
    because = f" (energy: {why})" if why else ""
    columns = (
        names("Strategy", "summary.trial.method"),
        numbers("N", "summary.trial.num_ranks"),
        numbers("Batch", "summary.trial.batch_samples"),
        numbers(
            "Overlapped", _overlapped, amounts.share, meaning="share of communication hidden by computation"
        ),
        *map(_resource, measured),
    )
    return (
        table_of("resources", columns, rows, caption="What a step uses: medians over repetitions"),
        note(sentence(f"Not measured: {', '.join(missing)}{because}.") if missing else ""),
    )


_TRAINING_COLUMNS: Final = (
    names("Workload", "trial.workload"),
    words("Strategy", "trial.method"),
    numbers("N", "trial.num_ranks"),
    numbers("Batch", "trial.batch_samples"),
    numbers("Held-out loss", lambda each: spread_cell(each.loss)),
    numbers("Accuracy", lambda each: spread_cell(each.accuracy)),
    numbers("Time", "seconds.value", format_duration),
    numbers("Samples", "num_samples", meaning="trained on"),
    numbers("Seeds", "num_seeds"),
)
_FAILURE_COLUMNS: Final = (
    names("Workload", "trial.workload"),
    words("Strategy", lambda each: _trial_words(each.trial)),
    numbers("Runs", "num_trials"),
    words("Reason", "reason"),
)


def _trainings_blocks(found: Swept) -> tuple[Block, ...]:
    caption = "Results of the trainings: medians over seeds, ranges below"
    return (table_of("trainings", _TRAINING_COLUMNS, found.trained, caption=caption),)


def _failures_blocks(found: Swept) -> tuple[Block, ...]:
    return (table_of("failures", _FAILURE_COLUMNS, found.failures, caption="Runs that failed, by reason"),)


# --- one screen


def _brief(found: Swept, _: int) -> tuple[Block, ...]:
    timed = _timed(found)
    most = max(1, _MOST_ROWS // max(1, len(timed[:_MOST_SUBJECTS])))
    num_configurations = sum(len(rows) for _, rows in timed) + len(found.trained)
    of_steps = ("phases", "resources") if num_configurations else ()
    num_hidden = len(found.failures) - _MOST_FAILURES
    return (
        *(block for subject, rows in timed[:_MOST_SUBJECTS] for block in _brief_steps(subject, rows[:most])),
        table_of("trainings", _TRAINING_COLUMNS[:-2], found.trained[: _MOST_ROWS // 2]),
        bullets(map(_failure, found.failures[:_MOST_FAILURES])),
        facts(_facts(found)),
        note(_method(found) if timed else ""),
        more_note((num_configurations, "configuration"), *of_steps, (num_hidden, "more failure")),
    )


def _failure(each: Failure) -> tuple[Span, ...]:
    words = sentence(f"{each.trial.workload}, {_trial_words(each.trial)}: {each.reason.rstrip('.')}.")
    return (Strong(f"Failed {each.num_trials}{TIMES}: "), words)


def _exposed(each: Judgement) -> float | None:
    """The fraction of a step spent waiting for communication."""
    exposed, step_s = each.summary.phases.get(EXPOSED), each.summary.step_s
    return None if each.is_alone or exposed is None or step_s is None else exposed / step_s.value


def _on_one_line(cell: Cell) -> Cell:
    return Cell(text=f"{cell.text} ({cell.detail})" if cell.detail else cell.text, key=cell.key)


_BRIEF_STEP: Final = numbers("Step, ms", lambda each: _on_one_line(milliseconds(each.summary.step_s)))
_BRIEF_SPEEDUP: Final = numbers(
    "Speedup", lambda each: _on_one_line(_factor(None if each.is_alone else each.speedup))
)
_BRIEF_EXPOSED: Final = numbers("Exposed", _exposed, amounts.share)
# Columns get room in this order. If batches have their own column, the step time comes last, because batch
# and rate imply it.
_ONE_BATCH: Final = (_BRIEF_STEP, _RATE, _BRIEF_SPEEDUP, _BRIEF_EXPOSED)
_BATCHES: Final = (_BATCH, _RATE, _BRIEF_SPEEDUP, _BRIEF_EXPOSED, _BRIEF_STEP)


def _brief_steps(subject: _Subject, rows: Sequence[Judgement]) -> Iterator[Block]:
    """One line per configuration, with ranges in the line."""
    batches = {each.summary.trial.batch_samples for each in rows}
    shared = f", batch {count(batches.pop())}" if len(batches) == 1 else ""
    name = f"brief-{'-'.join(subject)}"
    yield Heading(name=name, text=f"{_subject_name(subject)}{shared}", is_minor=True)
    columns = (_STRATEGY, _RANKS, *(_ONE_BATCH if shared else _BATCHES))
    yield table_of(f"{name}-steps", columns, rows)


SWEEP: Final[Page[Swept]] = Page(
    title=lambda found: f"Sweep: {printable(found.name)}",
    about=lambda found: f"Your sweep {printable(found.name)}",
    headline=_headline,
    summary=_summary,
    sections=(
        Section("steps", "Steps", _steps_blocks),
        Section("phases", "Where the time of a step goes", _phases_blocks),
        Section("resources", "Resources", _resources_blocks),
        Section("trainings", "Trainings", _trainings_blocks, needs=("trained",), is_extra=True),
        Section("failures", "What failed", _failures_blocks, needs=("failures",), is_extra=True),
    ),
    closing=_closing,
    brief=_brief,
)


# --- document


def sweep_fields(found: Swept) -> dict[str, Any]:
    """The document of a sweep."""
    refusal = {}
    if found.refusal:
        refusal = missing_fields(EvidenceError(found.refusal, missing=("a run that succeeds",)))
    return {
        **refusal,
        "sweep": found.name,
        "folder": str(found.progress.folder),
        "num_trials": found.progress.num_planned,
        "num_finished": len(found.finished),
        "num_failed": len(found.failed),
        **found.settings,
        "level": LEVEL,
        "configurations": [significant(_configuration(each, found.name)) for each in found.judgements],
        "false_differences": _false_differences_fields(found.false_differences),
        "meaning": list(found.meanings),
    }


_RATE_NAMES: Final = {
    "value": "samples_per_s",
    "low": "samples_per_s_low",
    "high": "samples_per_s_high",
}


def _configuration(judgement: Judgement, sweep: str) -> dict[str, Any]:
    summary = judgement.summary
    trial = summary.trial
    rate, reasons = summary.samples_per_s, [one.reason for one in summary.failed]
    return {
        "run_id": f"{sweep}/{trial.configuration_id}",
        "status": _status(summary),
        "reason": reasons[0] if reasons else None,
        **picked(trial, "workload", *WAY_NAMES, "precision", "device", **WAY_NAMES),
        "num_repetitions": len(summary.finished),
        "num_failed": len(summary.failed),
        "step_s": _median(summary.step_s, len(summary.timed)),
        "phases": summary.phases,
        **picked(rate, "value", "low", "high", **_RATE_NAMES),
        "speedup": plain(judgement.speedup),
        "efficiency": judgement.efficiency,
        "over_ddp": plain(judgement.over_plain),
        "lost_s": judgement.lost,
        "steady": summary.is_steady if summary.timed else None,
        "phases_sum": summary.parts_sum if summary.timed else None,
        "num_outlying_steps": sum(run.num_outliers for run in summary.timed),
        "num_outlying_repetitions": sum(summary.outlying),
        "num_disturbed": summary.num_disturbed,
        "memory_bytes": summary.median_of("memory_bytes"),
        "utilisation": {name: summary.median_of(name) for name in UTILISATION},
        "energy_j": summary.median_of("energy_j"),
        "energy_reason": _energy_reason(summary),
        "training": _training(summary),
        "repetitions": [_repetition(one, sweep) for one in summary.finished],
    }


def _status(summary: ConfigurationSummary) -> str:
    """`success`, `failed`, or `partly_failed` if only some repetitions failed."""
    if not summary.failed:
        return SUCCESS
    return FAILED if len(summary.failed) == len(summary.finished) else "partly_failed"


def _median(found: Spread | None, num_values: int) -> dict[str, Any] | None:
    if found is None:
        return None
    method = None if found.low is None else interval_method(num_values)
    return {**picked(found, "value", "low", "high", value="median"), "method": method}


def _training(summary: ConfigurationSummary) -> dict[str, Any] | None:
    """The results of the trainings over all seeds; null if nothing was trained."""
    found = trained(summary)
    if found is None:
        return None
    ends = {"loss": found.loss, "accuracy": found.accuracy, "seconds": found.seconds}
    return {
        **picked(found, "num_seeds", "num_samples"),
        **{name: _median(end, found.num_seeds) for name, end in ends.items()},
    }


_RUN_NAMES: Final = {"is_steady": "steady", "num_outliers": "num_outlying_steps"}


def _repetition(finished: FinishedTrial, sweep: str) -> dict[str, Any]:
    run = timed_run(finished)
    phases = {name: run.shares[name] * run.step_s for name in PARTS if name in run.shares} if run else {}
    return {
        "run_id": run_id(sweep, finished),
        **picked(finished, "status", "reason"),
        **picked(finished.trial, "repetition", "arm", "seed"),
        "file": finished.file,
        **picked(run, "step_s", "num_steps", "num_warm_up", "is_steady", "num_outliers", **_RUN_NAMES),
        "phases": phases,
    }


def _false_differences_fields(found: FalseDifferences | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "arms": "own" if found.are_arms else "odd and even repetitions",
        **picked(found, "num_compared", "num_different"),
        **picked(found.rate, "value", "low", "high", value="rate"),
    }
