"""Every watched run of a folder in a table, the newest first."""

from typing import Final

from equipoise.advice.measured.watched_now import WatchedNow, WatchedRun
from equipoise.report.blocks import Badge, Block, Bullets, Cell, Column, Table, note, prose
from equipoise.report.section import Section
from equipoise.report.sweep_text import milliseconds, within
from equipoise.report.watched_text import SUCCESS, begun, reason
from equipoise.report.words import ABSENT, DASH, accelerator_name, count, plural, printable, ratio, sentence

MOST_WHY: Final = 10
COLUMNS: Final = (
    Column(title="Begun, UTC", is_header=True),
    Column(title="Workload"),
    Column(title="Ranks", is_number=True),
    Column(title="Batch", is_number=True, meaning="samples of an update over all ranks"),
    Column(title="Step, ms", is_number=True, meaning="median over the steps that count; its interval below"),
    Column(title="Samples/s", is_number=True, meaning="of all ranks together"),
    Column(title="Steps", is_number=True, meaning="that count: after warm-up, of the usual size"),
    Column(title="Warm-up", is_number=True, is_wide=True, meaning="first steps, which are left out"),
    Column(title="Left out", is_number=True, is_wide=True, meaning="steps of another size than most"),
)


def _blocks(findings: WatchedNow) -> tuple[Block, ...]:
    table = Table(
        name="runs",
        caption=f"{plural(len(findings.runs), 'run')}, the newest first",
        columns=COLUMNS,
        rows=tuple(map(_row, findings.runs)),
    )
    failed = [run for run in findings.runs if not run.is_running and run.status != SUCCESS]
    why = [sentence(f"{begun(run)}: {reason(run)}; the steps before it stand.") for run in failed[:MOST_WHY]]
    unread = [
        sentence(f"{printable(each.name)} is not read: {each.reason}.") for each in findings.unread[:MOST_WHY]
    ]
    told = Bullets(items=tuple((each,) for each in (*why, *unread)))
    older = f"{plural(findings.num_older, 'older run')} not shown."
    return (
        *((table,) if findings.runs else ()),
        *((told,) if why or unread else ()),
        *((note(older),) if findings.num_older else ()),
        *(() if findings.runs or unread else (prose("Nothing has been written yet."),)),
    )


def _row(run: WatchedRun) -> tuple[Cell, ...]:
    rate = run.samples_per_s
    machine = accelerator_name(run.accelerator) if run.accelerator else ""
    how = ", ".join(printable(each) for each in (run.strategy, run.precision, machine) if each)
    ends = None if rate is None else within(rate)
    if ends is not None and len(set(ends.split(f" {DASH} "))) == 1:  # narrower than its digits
        ends = None
    return (
        Cell(text=begun(run), key=run.name, badge=_badge(run)),
        Cell(text=printable(run.workload or "unknown"), key=run.workload or "", detail=how or None),
        Cell(text=count(run.num_ranks), key=run.num_ranks),
        Cell(text=ABSENT)
        if run.batch_samples is None
        else Cell(text=count(run.batch_samples), key=run.batch_samples),
        milliseconds(run.step_s),
        Cell(text=ABSENT) if rate is None else Cell(text=ratio(rate.value), key=rate.value, detail=ends),
        Cell(text=count(run.num_steps), key=run.num_steps),
        Cell(text=count(run.num_warm_up), key=run.num_warm_up),
        Cell(text=count(run.num_unlike), key=run.num_unlike),
    )


def _badge(run: WatchedRun) -> Badge | None:
    """What is to be known before the row is relied on."""
    if run.is_running:
        return Badge(text="training", tone="good")
    if run.status != SUCCESS:
        return Badge(text="cut short", tone="bad")
    if run.missing_ranks:
        return Badge(text=f"{len(run.missing_ranks)} ranks missing", tone="bad")
    return None if run.is_steady or run.step_s is None else Badge(text="not steady", tone="quiet")


SECTION: Final[Section[WatchedNow]] = Section(name="runs", title="Runs", needs=(), blocks=_blocks)
