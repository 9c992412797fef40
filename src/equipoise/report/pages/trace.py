"""The page of traced ranks: where each rank's steps go, and which rank the others wait for."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import to_builtins

from equipoise.bench.trace.rank import RankTrace, TraceStep
from equipoise.diagnose.stragglers import Lateness, TraceSteps
from equipoise.report.blocks import Block, Cell, Column, Page, Section, Table, bullets, note, number
from equipoise.report.format import ABSENT, listed, plural, printable, sentence
from equipoise.report.measured_json import median_step_s, stragglers, total_s, trace_notes
from equipoise.units import MILLISECOND_S, format_percent

_CAUSES: Final = {
    "computes": "it computes longer than the others",
    "idles": "its device idles longer than the others",
}
_PARTS: Final = (
    Column(title="Step, ms", is_number=True, meaning="compute + exposed communication + idle"),
    Column(title="Compute", is_number=True),
    Column(title="Exposed", is_number=True, meaning="communication while nothing is computed"),
    Column(title="Idle", is_number=True),
    Column(title="Comm, ms", is_number=True, meaning="all communication"),
    Column(title="Overlapped", is_number=True, meaning="share of communication hidden by computation"),
)
# A page of tens of thousands of ranks is read by nobody; the document has all.
_MOST_ROWS: Final = 512
_MOST_NAMED: Final = 6
# Of one screen.
_MOST_LINES: Final = 12
_MOST_SENTENCES: Final = 3


# --- head


def _about(found: TraceSteps) -> str:
    ranks = found.traces.ranks
    return f"Traces of {plural(len(ranks), 'rank')}, {plural(sum(len(each.steps) for each in ranks), 'step')}"


def _headline(found: TraceSteps) -> str:
    """The slowest of the late ranks, or where a step goes."""
    late = stragglers(found.lateness)
    if late:
        names = [_rank_words(each.trace) for each in late[:_MOST_NAMED]]
        return sentence(f"Late: {listed(names)}")
    parts = _mean(found.traces.ranks[0])
    share = ABSENT if parts.step_s == 0 else _percent(parts.compute_s / parts.step_s)
    nobody = "No rank is late; " if found.lateness else ""
    return f"{nobody}a step takes {parts.step_s / MILLISECOND_S:.4g} ms, {share} of it computing"


def _summary(found: TraceSteps) -> tuple[str, ...]:
    return tuple(map(_straggler, stragglers(found.lateness)[:_MOST_SENTENCES]))


def _rank_words(trace: RankTrace) -> str:
    return f"rank {trace.rank}" if trace.rank is not None else printable(trace.where.rpartition("/")[2])


def _straggler(each: Lateness) -> str:
    """A straggler in one sentence."""
    step_s = median_step_s(each.trace)
    share = f" ({format_percent(each.late_s / step_s)})" if step_s else ""
    why = f"; {_CAUSES[each.cause]}" if each.cause else ""
    return sentence(
        f"The others wait {each.late_s / MILLISECOND_S:.3g} ms per step for {_rank_words(each.trace)}{share}"
        f", longest in {format_percent(each.share_of_steps)} of the steps{why}."
    )


# --- tables


def _ranks_table(found: TraceSteps, most: int) -> Table:
    """A row per rank: the mean step and the shares of its parts."""
    ranks = found.traces.ranks
    late = {id(each.trace): each for each in found.lateness}
    return Table(
        name="ranks",
        caption="Mean steps by rank",
        columns=(
            Column(title="Rank", is_header=True),
            Column(title="Steps", is_number=True),
            *_PARTS[:-2],
            Column(title="Late, ms", is_number=True, meaning="wait of the other ranks in the median step"),
            *_PARTS[-2:],
        ),
        rows=tuple(_rank_row(trace, ranks, late.get(id(trace))) for trace in ranks[:most]),
    )


def _rank_row(trace: RankTrace, ranks: Sequence[RankTrace], late: Lateness | None) -> tuple[Cell, ...]:
    several = sum(each.where == trace.where for each in ranks) > 1
    name = ABSENT if trace.rank is None else str(trace.rank)
    parts = tuple(_cells(_mean(trace)))
    return (
        Cell(text=f"{name} device {trace.device}" if several else name, key=trace.rank),
        number(len(trace.steps)),
        *parts[:-2],
        number(None if late is None else late.late_s, lambda value: f"{value / MILLISECOND_S:.3g}"),
        *parts[-2:],
    )


def _steps_table(trace: RankTrace, most: int) -> Table:
    """A row per step of one rank."""
    return Table(
        name="steps",
        caption=f"Steps of {_rank_words(trace)}",
        columns=(Column(title="Step", is_header=True), *_PARTS),
        rows=tuple(
            (Cell(text=str(step.number), key=step.number), *_cells(step)) for step in trace.steps[:most]
        ),
    )


def _mean(trace: RankTrace) -> TraceStep:
    """The mean of a rank's steps."""
    totals = {part: total_s(trace, part) for part in to_builtins(trace.steps[0]) if part != "number"}
    means = {part: None if total is None else total / len(trace.steps) for part, total in totals.items()}
    return TraceStep(number=None, **means)  # type: ignore[arg-type] # as steps have them


def _cells(step: TraceStep) -> Iterator[Cell]:
    """Its length, shares, communication, and how much of that computation hides."""
    communication, exposed = step.communication_s, step.exposed_s
    yield number(step.step_s, _ms)
    for part in (step.compute_s, exposed, step.idle_s):
        yield number(None if part is None or step.step_s == 0 else part / step.step_s, _percent)
    yield number(communication, _ms)
    hidden = None if not communication or exposed is None else (communication - exposed) / communication
    yield number(hidden, _percent)


def _ms(seconds: float) -> str:
    return f"{seconds / MILLISECOND_S:.4g}"


def _percent(fraction: float) -> str:
    """A share with one decimal, so that shares of one whole line up."""
    return f"{100 * fraction:.1f} %"


def _tables(found: TraceSteps, most: int) -> Iterator[Block]:
    """Ranks, and of a single one its steps; how many are not shown."""
    ranks = found.traces.ranks
    yield _ranks_table(found, most)
    num_left, kind = len(ranks) - most, "rank"
    if len(ranks) == 1 and len(ranks[0].steps) > 1:
        yield _steps_table(ranks[0], most)
        num_left, kind = len(ranks[0].steps) - most, "step"
    if num_left > 0:
        yield note(f"{plural(num_left, kind)} not shown; --json has all.")


def _ranks_blocks(found: TraceSteps) -> tuple[Block, ...]:
    return (*_tables(found, _MOST_ROWS), note("Means over steps; step = compute + exposed + idle."))


def _problems(found: TraceSteps) -> Iterator[str]:
    """Files that were not read, and notes on those that were."""
    for each in found.traces.rejected.kinds.values():
        yield sentence(f"{each.count} not read: {each.first.detail}.")
    for text, files in trace_notes(found.traces).items():
        names = [each.rpartition("/")[2] for each in files[:_MOST_NAMED]]
        more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
        which = f"{', '.join(names)}{more}" if len(found.traces.ranks) > 1 else "Note"
        yield sentence(f"{which}: {text}.")


def _problems_blocks(found: TraceSteps) -> tuple[Block, ...]:
    problems = tuple(_problems(found))
    return (bullets(problems),) if problems else (note("Every file was read."),)


def _brief(found: TraceSteps, _: int) -> tuple[Block, ...]:
    return (
        *_tables(found, _MOST_LINES),
        note("Means over steps; step = compute + exposed + idle. Late: what the others wait for a rank."),
        bullets(list(_problems(found))[:_MOST_SENTENCES]),
    )


TRACE: Final[Page[TraceSteps]] = Page(
    title=_about,
    about=_about,
    headline=_headline,
    summary=_summary,
    sections=(
        Section(name="ranks", title="Where the time of a step goes", blocks=_ranks_blocks),
        Section(name="problems", title="What was not read", blocks=_problems_blocks),
    ),
    closing=lambda _: (
        "Parts of each step sum to it.",
        "The last rank to enter a collective spends the least time in it: no clocks are compared.",
    ),
    brief=_brief,
)
