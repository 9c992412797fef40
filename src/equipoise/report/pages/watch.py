"""The page of watched training loops: runs, phases of steps, step time over the run, and ranks."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from equipoise.bench.counters import MOST_OTHERS
from equipoise.bench.summary import LEVEL
from equipoise.bench.trial import SUCCESS
from equipoise.diagnose.watched_runs import ENDED, RankSeen, WatchedNow, WatchedRun
from equipoise.report.blocks import (
    Badge,
    Block,
    Cell,
    ColumnOf,
    Of,
    Page,
    Panels,
    Section,
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
from equipoise.report.charts import Axis, Chart, Series, series_mark, series_of
from equipoise.report.format import accelerator_name, capital, count, printable, ratio, sentence
from equipoise.report.pages import breakdowns
from equipoise.units import MIB, MILLISECOND_S, format_milliseconds, format_percent, plural, tenths

_NAME: Final = re.compile(r"\A(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)-[0-9a-f]+\Z", re.ASCII)
_RANK_PHASES: Final = {name: title for name, title in breakdowns.PHASES.items() if name != "rest"}
_MOST_GAINS: Final = 2
_MOST_BARS: Final = 12
_MOST_LINES: Final = 4
_MOST_WHY: Final = 10
# Of one screen.
_MOST_RUNS: Final = 8


# --- words


def _start_words(run: WatchedRun) -> str:
    """Start of a run, parsed from its folder's name; the name itself if it has another format."""
    return printable(_NAME.sub(r"\1-\2-\3 \4:\5:\6", run.name))


def _short_start_words(run: WatchedRun, among: Sequence[WatchedRun]) -> str:
    """Start of a run, without the parts that all runs in `among` share."""
    begun = _start_words(run)
    if any(_NAME.fullmatch(each.name) is None for each in among):
        return begun
    days = {_start_words(each)[:10] for each in among}
    if len(days) == 1:
        return begun[11:]
    return begun[5:16] if len({_start_words(each)[5:16] for each in among}) == len(among) else begun


def _headline(found: WatchedNow) -> str:
    name = printable(found.name)
    if not found.runs:
        what = "can be read" if found.unread else "has written yet"
        return f"{name}: no watched run {what}"
    run = found.runs[0]
    what = f"{printable(run.workload or 'a model')} on {plural(run.num_ranks, 'rank')}"
    step = "" if run.step_s is None else f", {breakdowns.step_words(run.step_s)} per step"
    state = "training" if run.is_running else "cut short" if _is_cut_short(run) else "ended"
    return f"{name}: {what}{step}; {state}"


def _summary(found: WatchedNow) -> tuple[str, ...]:
    newest = _of_run(found.runs[0]) if found.runs else ()
    others = len(found.runs) - 1 + found.num_older
    more = (f"{plural(others, 'earlier run')} in this folder.",) if others > 0 else ()
    unread = len(found.unread)
    lost = (f"{plural(unread, 'run')} cannot be read: see below.",) if unread else ()
    return (*newest, *more, *lost)


def _of_run(run: WatchedRun) -> tuple[str, ...]:
    if run.step_s is None:
        waiting = ("Phases are shown once steps are steady: after a few dozen.",)
        return waiting if run.is_running else ()
    rate = "" if run.samples_per_s is None else f", {ratio(run.samples_per_s.value)} samples/s"
    steady = () if run.is_steady else ("Step times still had a trend: they are not steady.",)
    stalled = (
        ()
        if run.uneven is None
        else (f"Steps took {run.uneven:.1f} times their median on average: some stalled.",)
    )
    others = run.others_cpu_fraction or 0.0
    taken = f"The machine was busy: other programs took {format_percent(others)} of the ranks' cores."
    return (
        *((taken,) if others > MOST_OTHERS else ()),
        f"{plural(run.num_steps, 'step')} measured{rate}{_largest(run)}.",
        *stalled,
        *(capital(sentence(f"{each}.")) for each in run.gains[:_MOST_GAINS]),
        *steady,
    )


def _largest(run: WatchedRun) -> str:
    """The phase that takes most of a step; empty if no phases were measured."""
    known = {name: run.phases[name] for name in breakdowns.PHASES if name in run.phases}
    if not known:
        return ""
    most = max(known, key=lambda name: known[name])
    share = tenths(known[most] / sum(known.values()))
    return f"; {share} of a step is {breakdowns.PHASES[most]}"


def _closing(found: WatchedNow) -> tuple[str, ...]:
    cut = any(not run.is_whole for run in found.runs)
    return (
        "Measured in the training itself by equipoise.watch.",
        f"Ranges: of the mean at {format_percent(LEVEL)} over one run's steps, not over several runs.",
        *(("Of long runs the latest steps of at most 64 ranks are read.",) if cut else ()),
    )


# --- runs


def _runs_blocks(found: WatchedNow) -> tuple[Block, ...]:
    caption = f"{plural(len(found.runs), 'run')}, the newest first"
    return (
        table_of("runs", _RUN_COLUMNS, found.runs, caption=caption),
        bullets(_reasons(found)),
        note(f"{plural(found.num_older, 'older run')} not shown." if found.num_older else ""),
        *(() if found.runs or found.unread else (prose("Nothing has been written yet."),)),
    )


def _reasons(found: WatchedNow) -> tuple[str, ...]:
    """Reasons why runs were cut short, have no steps, or cannot be read."""
    failed = [run for run in found.runs if not run.is_running and run.status != SUCCESS]
    why = [
        f"{_start_words(run)}: {run.status.removeprefix('failed: ')}"
        f"{'; the steps before it stand' if _is_cut_short(run) else ''}."
        for run in failed[:_MOST_WHY]
    ]
    unread = [f"{printable(each.name)} is not read: {each.reason}." for each in found.unread[:_MOST_WHY]]
    return tuple(map(sentence, (*why, *unread)))


def _is_cut_short(run: WatchedRun) -> bool:
    """Whether a rank failed or recorded no end; a run that ended without a measured step does not count."""
    return any(each.end != ENDED for each in run.ranks)


def _set_up_words(run: WatchedRun) -> str | None:
    """Strategy, precision and accelerator, as far as the run states them."""
    machine = accelerator_name(run.accelerator) if run.accelerator else ""
    return ", ".join(printable(each) for each in (run.strategy, run.precision, machine) if each) or None


def _badge(run: WatchedRun) -> Badge | None:
    """The caveat of a row; None if there is none."""
    if run.is_running:
        return Badge(text="training", tone="good")
    if run.status != SUCCESS:
        return Badge(text="cut short" if _is_cut_short(run) else "no steps", tone="bad")
    if run.missing_ranks:
        return Badge(text=f"{plural(len(run.missing_ranks), 'rank')} missing", tone="bad")
    return None if run.is_steady or run.step_s is None else Badge(text="not steady", tone="quiet")


# --- phases and step times


def _phases_blocks(found: WatchedNow) -> tuple[Block, ...]:
    runs = found.split[:_MOST_BARS]
    is_one_size = len({run.num_ranks for run in runs}) == 1
    names = tuple(f"{_start_words(run)}, {plural(run.num_ranks, 'rank')}" for run in runs)
    below = [
        _short_start_words(run, runs)
        if is_one_size
        else f"{_short_start_words(run, runs)}, {plural(run.num_ranks, 'rank')}"
        for run in runs
    ]
    chart = breakdowns.step_chart(
        "watched-phases",
        "A step of each run",
        "begun, UTC" if is_one_size else "begun, UTC; ranks",
        [(category, run.phases) for category, run in zip(below, runs, strict=True)],
        names=names,
    )
    is_cut = len(found.split) > _MOST_BARS
    return (
        prose(breakdowns.PHASES_INTRO),
        Panels(charts=(chart,), legend="Phase"),
        note(f"The newest {_MOST_BARS} runs are shown." if is_cut else ""),
    )


def _course_blocks(found: WatchedNow) -> tuple[Block, ...]:
    runs = found.drawn[:_MOST_LINES]
    chart = Chart(
        name="watched-course",
        title="Step time during training",
        subtitle="of the slowest rank, warm-up included; a point is a median of neighbours in long runs",
        alternative=sentence(f"{'; '.join(map(_course_words, runs))}."),
        x=Axis(title="update"),
        y=Axis(title="ms per step", starts_at_zero=True),
        series=tuple(_series(run, place, runs) for place, run in enumerate(runs)),
    )
    return (Panels(charts=(chart,), legend="Begun, UTC"),)


def _series(run: WatchedRun, place: int, runs: tuple[WatchedRun, ...]) -> Series:
    assert run.course is not None
    points = (
        (
            step,
            each / MILLISECOND_S,
            (_start_words(run), f"update {count(step)}: {format_milliseconds(each)} ms"),
        )
        for step, each in zip(run.course.steps, run.course.step_s, strict=True)
    )
    return series_of(_short_start_words(run, runs), series_mark(place), points, is_line=True)


def _course_words(run: WatchedRun) -> str:
    assert run.course is not None
    first, last = format_milliseconds(run.course.step_s[0]), format_milliseconds(run.course.step_s[-1])
    return f"{_start_words(run)}: {first} ms at first, {last} ms at update {count(run.course.steps[-1])}"


# --- ranks


_RUN_COLUMNS: Final = (
    names("Begun, UTC", lambda run: Cell(text=_start_words(run), key=run.name, badge=_badge(run))),
    words("Workload", lambda run: named(run.workload or "unknown", detail=_set_up_words(run))),
    numbers("N", "num_ranks", meaning="number of ranks"),
    numbers("Batch", "batch_samples", meaning="samples of an update over all ranks"),
    numbers(
        "Step, ms",
        lambda run: breakdowns.milliseconds(run.step_s),
        meaning="mean over measured steps; its range below",
    ),
    numbers(
        "Samples/s", lambda run: breakdowns.spread_cell(run.samples_per_s), meaning="of all ranks together"
    ),
    numbers("Steps", "num_steps", meaning="measured: after warm-up, of the usual size"),
    numbers("Warm-up", "num_warm_up", is_wide=True, meaning="first steps, excluded"),
    numbers("Excluded", "num_unlike", is_wide=True, meaning="steps of another size than most"),
    numbers("Counted", "num_counted", is_wide=True, meaning="short steps between measured ones, not timed"),
)


def _without_detail(column: ColumnOf) -> ColumnOf:
    head, cell = column
    return head, lambda run: replace(cell(run), detail=None)


# For one screen: without the batch, and without the second lines of cells.
_BRIEF_COLUMNS: Final = tuple(
    map(_without_detail, (column for column in _RUN_COLUMNS[:7] if column[0].title != "Batch"))
)


def _ranks_blocks(found: WatchedNow) -> tuple[Block, ...]:
    """The ranks of the newest run with several ranks: which one is slow, and in which phase."""
    run = found.several[0]
    columns = (
        numbers("Rank", "rank"),
        names(
            "Host", lambda each: Cell(text=printable(each.host), key=each.host, badge=_rank_badge(each, run))
        ),
        numbers("Last step", "num_steps", meaning="the latest that it has written"),
        numbers("Step, ms", "step_s", format_milliseconds, meaning="mean over measured steps"),
        *(
            numbers(f"{capital(title)}, ms", _phase(name), format_milliseconds, is_wide=True, meaning="mean")
            for name, title in _RANK_PHASES.items()
        ),
        numbers(
            "Memory, MiB",
            "memory_bytes",
            lambda value: count(round(value / MIB)),
            is_wide=True,
            meaning="its peak, written at its end",
        ),
    )
    absent = len(run.missing_ranks)
    missing = f"{count(absent)} of {count(run.num_ranks)} ranks are not in this folder, or not read."
    caption = sentence(f"Ranks of the run begun at {_start_words(run)} UTC")
    return (table_of("ranks", columns, run.ranks, caption=caption), note(missing if absent else ""))


def _phase(name: str) -> Of:
    return lambda each: each.phases.get(name)


def _rank_badge(each: RankSeen, run: WatchedRun) -> Badge | None:
    if each.end is None:
        return None if run.is_running else Badge(text="no end", tone="bad")
    return None if each.end == ENDED else Badge(text="failed", tone="bad")


# --- one screen


def _brief(found: WatchedNow, _: int) -> tuple[Block, ...]:
    return (
        table_of("runs", _BRIEF_COLUMNS, found.runs[:_MOST_RUNS]),
        facts(("Step", _shares(run)) for run in found.split[:1]),
        bullets(_reasons(found)[:2]),
        more_note((len(found.runs) - _MOST_RUNS, "run"), "phases", "step times", "ranks"),
    )


def _shares(run: WatchedRun) -> str:
    """The phases of a step, the largest first."""
    parts = {phase: run.phases.get(phase, 0.0) for phase in breakdowns.PHASES}
    return f"{', '.join(breakdowns.Stack(bars=(('', parts),), titles=breakdowns.PHASES).shares(0))}."


WATCH: Final[Page[WatchedNow]] = Page(
    title=lambda found: f"Watched: {printable(found.name)}",
    about=lambda found: f"Your training loops in {printable(found.name)}",
    headline=_headline,
    summary=_summary,
    sections=(
        Section("runs", "Runs", _runs_blocks),
        Section("phases", "Where the time of a step goes", _phases_blocks, needs=("split",)),
        Section("course", "Step time during training", _course_blocks, needs=("drawn",)),
        Section("ranks", "Ranks", _ranks_blocks, needs=("several",)),
    ),
    closing=_closing,
    brief=_brief,
)
