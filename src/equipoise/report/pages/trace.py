"""The page of traced ranks, with its JSON document: where step time goes, and which ranks straggle."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any, Final

from equipoise.bench.phases import overlapped_fraction
from equipoise.bench.trace import RankTrace, Traces, TraceStep, to_nanoseconds
from equipoise.diagnose.stragglers import Lateness, TraceSteps
from equipoise.files import file_names
from equipoise.report.blocks import (
    Block,
    Cell,
    Page,
    Section,
    Table,
    bullets,
    names,
    note,
    numbers,
    table_of,
)
from equipoise.report.format import ABSENT, listed, printable, sentence
from equipoise.report.json import fields_of, picked
from equipoise.units import format_milliseconds, format_percent, plural

_CAUSES: Final = {
    "computes": "it computes longer than the others",
    "idles": "its device idles longer than the others",
}


def _of_step(form: Callable[[TraceStep], float | None]) -> Callable[[RankTrace | TraceStep], float | None]:
    """A function that applies `form` to a step, or to the mean step of a rank."""
    return lambda each: form(each.mean_step if isinstance(each, RankTrace) else each)


def _ms(seconds: float) -> str:
    return format_milliseconds(seconds, digits=4)


def _percent(fraction: float) -> str:
    """A fraction in percent with one decimal, so that the parts of one step align."""
    return f"{100 * fraction:.1f} %"


def _share(part_s: float | None, whole_s: float | None) -> float | None:
    return None if part_s is None or not whole_s else part_s / whole_s


def trace_notes(found: Traces) -> dict[str, list[str]]:
    """Each distinct note, with the files that it applies to."""
    notes: dict[str, list[str]] = {}
    for trace in found.ranks:
        for text in trace.notes:
            if trace.where not in notes.setdefault(text, []):
                notes[text].append(trace.where)
    return notes


_PARTS: Final = (
    numbers(
        "Step, ms", _of_step(lambda step: step.step_s), _ms, meaning="compute + exposed communication + idle"
    ),
    numbers("Compute", _of_step(lambda step: _share(step.compute_s, step.step_s)), _percent),
    numbers(
        "Exposed",
        _of_step(lambda step: _share(step.exposed_s, step.step_s)),
        _percent,
        meaning="communication while nothing is computed",
    ),
    numbers("Idle", _of_step(lambda step: _share(step.idle_s, step.step_s)), _percent),
    numbers("Comm, ms", _of_step(lambda step: step.communication_s), _ms, meaning="all communication"),
    numbers(
        "Overlapped",
        _of_step(lambda step: overlapped_fraction(step.exposed_s, step.communication_s)),
        _percent,
        meaning="share of communication hidden by computation",
    ),
)
# Nobody reads a page of tens of thousands of ranks; the JSON document has all.
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
    late = found.stragglers
    if late:
        names = listed([_rank_words(each.trace) for each in late], _MOST_NAMED)
        return sentence(f"Late: {names}")
    means = [each.mean_step for each in found.traces.ranks]
    step_s, compute_s = fmean(each.step_s for each in means), fmean(each.compute_s for each in means)
    share = ABSENT if step_s == 0 else _percent(compute_s / step_s)
    a_step = "No rank is late; a step" if found.lateness else "A step"
    mean = " in the mean of the ranks" if len(means) > 1 else ""
    return f"{a_step} takes {_ms(step_s)} ms{mean}, {share} of it computing"


def _rank_words(trace: RankTrace) -> str:
    return f"rank {trace.rank}" if trace.rank is not None else printable(trace.where.rpartition("/")[2])


def _straggler(each: Lateness) -> str:
    share = "" if each.late_fraction is None else f" ({format_percent(each.late_fraction)})"
    why = f"; {_CAUSES[each.cause]}" if each.cause else ""
    return sentence(
        f"The others wait {format_milliseconds(each.late_s)} ms per step for {_rank_words(each.trace)}{share}"
        f", longest in {format_percent(each.share_of_steps)} of the steps{why}."
    )


# --- tables


def _ranks_table(found: TraceSteps, most: int) -> Table:
    ranks = found.traces.ranks
    late = {id(each.trace): each.late_s for each in found.lateness}
    columns = (
        names("Rank", lambda trace: _rank_cell(trace, ranks)),
        numbers("Steps", lambda trace: len(trace.steps)),
        *_PARTS[:-2],
        numbers(
            "Late, ms",
            lambda trace: late.get(id(trace)),
            format_milliseconds,
            meaning="wait of the other ranks in the median step",
        ),
        *_PARTS[-2:],
    )
    return table_of("ranks", columns, ranks[:most], caption="Mean steps by rank")


def _rank_cell(trace: RankTrace, ranks: Sequence[RankTrace]) -> Cell:
    several = sum(each.where == trace.where for each in ranks) > 1
    name = ABSENT if trace.rank is None else str(trace.rank)
    return Cell(text=f"{name} device {trace.device}" if several else name, key=trace.rank)


def _steps_table(trace: RankTrace, most: int) -> Table:
    columns = (names("Step", lambda step: Cell(text=str(step.number), key=step.number)), *_PARTS)
    return table_of("steps", columns, trace.steps[:most], caption=f"Steps of {_rank_words(trace)}")


def _tables(found: TraceSteps, most: int) -> Iterator[Block]:
    """A table of ranks, or of the steps of a single rank, and the number of rows not shown."""
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
    yield from map(sentence, found.traces.problems)
    for text, files in trace_notes(found.traces).items():
        which = file_names(files, _MOST_NAMED) if len(found.traces.ranks) > 1 else "Note"
        yield sentence(f"{which}: {text}.")


def _problems_blocks(found: TraceSteps) -> tuple[Block, ...]:
    problems = _first_problems(found, _MOST_ROWS, "--json")
    return (bullets(problems),) if problems else (note("Every file was read."),)


def _first_problems(found: TraceSteps, most: int, rest: str) -> list[str]:
    """The first `most` problems, and how many more there are. rest: the option that lists all."""
    problems = [*_problems(found)]
    left = len(problems) - most
    return problems[:most] + ([f"{left} more: {rest} has all."] if left > 0 else [])


def _brief(found: TraceSteps, _: int) -> tuple[Block, ...]:
    return (
        *_tables(found, _MOST_LINES),
        note("Means over steps; step = compute + exposed + idle. Late: what the others wait for a rank."),
        bullets(_first_problems(found, _MOST_SENTENCES, "--full")),
    )


TRACE: Final[Page[TraceSteps]] = Page(
    title=_about,
    about=_about,
    headline=_headline,
    summary=lambda found: tuple(map(_straggler, found.stragglers[:_MOST_SENTENCES])),
    sections=(
        Section("ranks", "Where the time of a step goes", _ranks_blocks),
        Section("problems", "What was not read", _problems_blocks),
    ),
    closing=lambda _: (
        "Parts of each step sum to it.",
        "The last rank to enter a collective spends the least time in it: no clocks are compared.",
    ),
    brief=_brief,
)


# --- document


# Parts that are reported as sums over all steps of a rank.
_SUMMED: Final = ("compute_s", "communication_s", "exposed_s", "idle_s", "copy_s")


def trace_fields(found: TraceSteps) -> dict[str, Any]:
    """The document of `trace`. Seconds keep nanosecond precision, so that parts sum to steps."""
    late = {id(each.trace): each for each in found.lateness}
    return {
        "ranks": [_traced_rank(each, late.get(id(each))) for each in found.traces.ranks],
        "stragglers": [_straggler_fields(each) for each in found.stragglers],
        "rejected": found.traces.rejected.rows(),
        "unread": [fields_of(each) for each in found.traces.unread],
        "notes": [{"note": note, "files": files} for note, files in trace_notes(found.traces).items()],
    }


def _traced_rank(trace: RankTrace, late: Lateness | None) -> dict[str, Any]:
    return {
        **picked(trace, "rank", "device", "world_size", "where", where="file"),
        "num_steps": len(trace.steps),
        "total_s": trace.total_s("step_s"),
        **{part: trace.total_s(part) for part in _SUMMED},
        "late_s": None if late is None else to_nanoseconds(late.late_s),
        "steps": [fields_of(each, number="step") for each in trace.steps],
    }


def _straggler_fields(each: Lateness) -> dict[str, Any]:
    return {
        **picked(each.trace, "rank", "device", "where", where="file"),
        "late_s": to_nanoseconds(each.late_s),
        **picked(each, "late_fraction", "share_of_steps", "cause", "by"),
    }
