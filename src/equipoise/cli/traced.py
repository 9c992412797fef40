"""What `equipoise trace` says: where each rank's steps go, and which rank the others wait for."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from equipoise.advice.measured.stragglers import Lateness
from equipoise.bench.trace.files import Traces
from equipoise.bench.trace.rank import RankTrace, Step
from equipoise.cli.output import counted, paragraph, table_text
from equipoise.units import MILLISECOND_S, format_percent

_MOST_LINES = 32
_MOST_NAMED = 6


def fields(found: Traces, lateness: Sequence[Lateness]) -> dict[str, Any]:
    """The fields of the document. Seconds are exact to the nanosecond, so that parts sum to steps."""
    late = {id(each.trace): each for each in lateness}
    return {
        "ranks": [_rank(each, late.get(id(each))) for each in found.ranks],
        "stragglers": [_straggler(each) for each in _stragglers(lateness)],
        "rejected": found.rejected.rows(),
        "notes": [{"note": note, "files": files} for note, files in _notes(found).items()],
    }


def _rank(trace: RankTrace, late: Lateness | None) -> dict[str, Any]:
    return {
        "rank": trace.rank,
        "device": trace.device,
        "world_size": trace.world_size,
        "file": trace.where,
        "num_steps": len(trace.steps),
        "total_s": _total(trace, "step_s"),
        "compute_s": _total(trace, "compute_s"),
        "communication_s": _total(trace, "communication_s"),
        "exposed_s": _total(trace, "exposed_s"),
        "idle_s": _total(trace, "idle_s"),
        "copy_s": _total(trace, "copy_s"),
        "late_s": None if late is None else _nanoseconds(late.late_s),
        "steps": [_step(each) for each in trace.steps],
    }


def _step(step: Step) -> dict[str, Any]:
    whole = asdict(step)
    return {"step": whole.pop("number"), **whole}


def _total(trace: RankTrace, part: str) -> float | None:
    """A part's sum over the steps; None where the trace does not tell it."""
    values = [getattr(step, part) for step in trace.steps]
    return None if any(value is None for value in values) else _nanoseconds(math.fsum(values))


def _nanoseconds(seconds: float) -> float:
    """Seconds to the nanosecond, which is what traces resolve."""
    return round(seconds, 9)


def _stragglers(lateness: Sequence[Lateness]) -> list[Lateness]:
    return sorted((each for each in lateness if each.is_late), key=lambda each: -each.late_s)


def _straggler(each: Lateness) -> dict[str, Any]:
    step_s = _median_step_s(each.trace)
    return {
        "rank": each.trace.rank,
        "device": each.trace.device,
        "file": each.trace.where,
        "late_s": _nanoseconds(each.late_s),
        "late_fraction": each.late_s / step_s if step_s else None,
        "share_of_steps": each.share_of_steps,
        "cause": each.cause,
        "by": each.by,
    }


def _median_step_s(trace: RankTrace) -> float:
    ordered = sorted(step.step_s for step in trace.steps)
    return ordered[len(ordered) // 2]


def _notes(found: Traces) -> dict[str, list[str]]:
    """Each note once, with the files it is of."""
    notes: dict[str, list[str]] = {}
    for trace in found.ranks:
        for note in trace.notes:
            if trace.where not in notes.setdefault(note, []):
                notes[note].append(trace.where)
    return notes


def text(found: Traces, lateness: Sequence[Lateness]) -> str:
    """The same for people."""
    parts = [_table(found.ranks, {id(each.trace): each for each in lateness})]
    parts.append(paragraph(_legend(lateness)))
    if len(found.ranks) == 1 and len(found.ranks[0].steps) > 1:
        parts.append(_steps(found.ranks[0]))
    parts.extend(paragraph(_said(each)) for each in _stragglers(lateness))
    if lateness and not _stragglers(lateness):
        parts.append(paragraph("No rank is late steadily, and by more than the ranks differ anyway."))
    parts.extend(
        paragraph(f"{each.count} not read: {each.first.detail}.") for each in found.rejected.kinds.values()
    )
    for note, files in _notes(found).items():
        which = _files(files) if len(found.ranks) > 1 else "Note"
        parts.append(paragraph(f"{which}: {note}."))
    return "\n".join(parts)


def _files(files: Sequence[str]) -> str:
    names = [each.rpartition("/")[2] for each in files[:_MOST_NAMED]]
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    return ", ".join(names) + more


_HEAD = ("step ms", "compute", "exposed", "idle", "comm ms", "hidden")


def _table(ranks: Sequence[RankTrace], late: dict[int, Lateness]) -> str:
    """One line a rank: the mean step and the shares of its parts."""
    rows = []
    for trace in ranks[:_MOST_LINES]:
        count = len(trace.steps)
        lateness = late.get(id(trace))
        waited = "-" if lateness is None else f"{lateness.late_s / MILLISECOND_S:.3g}"
        rows.append([_name(trace, ranks), str(count), *_parts(_mean(trace)), waited])
    head = ["rank", "steps", *_HEAD, "late ms"]
    more = len(ranks) - _MOST_LINES
    rest = paragraph(f"... and {counted(more, 'rank', 'ranks')} more; --json has all.") if more > 0 else ""
    return table_text(head, rows, align="<>>>>>>>>") + rest


def _name(trace: RankTrace, ranks: Sequence[RankTrace]) -> str:
    """The rank, and its device where a rank has several."""
    name = "-" if trace.rank is None else str(trace.rank)
    several = sum(each.where == trace.where for each in ranks) > 1
    return f"{name} device {trace.device}" if several else name


def _mean(trace: RankTrace) -> Step:
    """The mean of a rank's steps."""
    totals = {part: _total(trace, part) for part in asdict(trace.steps[0]) if part != "number"}
    means = {part: None if total is None else total / len(trace.steps) for part, total in totals.items()}
    return Step(number=None, **means)  # type: ignore[arg-type] # as steps have them


def _parts(step: Step) -> list[str]:
    """The cells of a step: its length, shares, communication, and how much of that computation hides."""

    def share(seconds: float | None) -> str:
        return "-" if seconds is None or step.step_s == 0 else _percent(seconds / step.step_s)

    communication, exposed = step.communication_s, step.exposed_s
    hidden = (
        "-" if not communication or exposed is None else _percent((communication - exposed) / communication)
    )
    shown = "-" if communication is None else f"{communication / MILLISECOND_S:.4g}"
    return [
        f"{step.step_s / MILLISECOND_S:.4g}",
        share(step.compute_s),
        share(exposed),
        share(step.idle_s),
        shown,
        hidden,
    ]


def _percent(fraction: float) -> str:
    """A share with one decimal, so that shares of one whole line up."""
    return f"{100 * fraction:.1f} %"


def _steps(trace: RankTrace) -> str:
    """One line a step."""
    rows = [[str(step.number), *_parts(step)] for step in trace.steps[:_MOST_LINES]]
    more = len(trace.steps) - _MOST_LINES
    rest = paragraph(f"... and {counted(more, 'step', 'steps')} more; --json has all.") if more > 0 else ""
    return table_text(["step", *_HEAD], rows, align="<>>>>>>") + rest


def _legend(lateness: Sequence[Lateness]) -> str:
    told = (
        "Means over steps; step = compute + exposed + idle. Exposed: communication while nothing is "
        "computed; hidden: the share of communication that computation hides."
    )
    late = " Late: how long the others wait for a rank, the median step." if lateness else ""
    return told + late


def _said(each: Lateness) -> str:
    """A straggler in one sentence."""
    rank = f"Rank {each.trace.rank}" if each.trace.rank is not None else each.trace.where.rpartition("/")[2]
    step_s = _median_step_s(each.trace)
    share = f" ({format_percent(each.late_s / step_s)} of it)" if step_s else ""
    cause = {
        "computes": "it computes longer than the others",
        "idles": "its device idles longer than the others",
    }
    why = f": {cause[each.cause]}" if each.cause else ""
    return (
        f"{rank} is late: the others wait {each.late_s / MILLISECOND_S:.3g} ms a step{share} for it, longest "
        f"in {format_percent(each.share_of_steps)} of the steps{why}."
    )
