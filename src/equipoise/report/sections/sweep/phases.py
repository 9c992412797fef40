"""Where the time of a step goes, by phase, beside perfect scaling."""

from collections.abc import Sequence
from typing import Final

from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.advice.measured.swept import Judgement
from equipoise.report.blocks import Block, Panels, note, prose
from equipoise.report.charts import BarChart, Mark, Part
from equipoise.report.section import Section
from equipoise.report.sweep_text import PHASES, Subject, subject_name, subjects, way
from equipoise.report.words import printable, sentence
from equipoise.units import MILLISECOND_S, format_percent

MOST_BARS: Final = 16


def _blocks(findings: SweepNow) -> tuple[Block, ...]:
    split = [
        (subject, [each for each in rows if any(_parts(each).values())])
        for subject, rows in subjects(findings)
    ]
    charts = [_chart(subject, rows[:MOST_BARS]) for subject, rows in split if rows]
    if not charts:
        return (prose("No run has told its phases yet."),)
    cut = any(len(rows) > MOST_BARS for _, rows in split)
    more = (note(f"The first {MOST_BARS} configurations are shown."),) if cut else ()
    intro = prose(
        "A bar is the median step of a configuration, by phase. Exposed communication is what the step "
        "waits for; what computing hides is not in it."
    )
    return (intro, *(Panels(charts=(chart,), legend="Phase") for chart in charts), *more)


def _chart(subject: Subject, rows: Sequence[Judgement]) -> BarChart:
    name = subject_name(subject)
    split = [each.summary.phases for each in rows]
    most = max(sum(phases.get(phase, 0.0) for phase in PHASES) for phases in split)
    return BarChart(
        name=f"phases-{'-'.join(subject)}",
        title=f"A step of {name}",
        subtitle="ranks and strategy below; its milliseconds above",
        alternative=sentence(f"{name}. {'; '.join(map(_words, rows))}."),
        x_title="ranks, strategy, batch",
        y_title="ms a step",
        categories=tuple(_category(each, rows) for each in rows),
        labels=tuple(f"{sum(each.values()) / MILLISECOND_S:.3g}" for each in map(_parts, rows)),
        limits=(0.0, most / MILLISECOND_S),
        series=tuple(
            _part(phase, place, rows)
            for place, phase in enumerate(PHASES)
            if any(phases.get(phase) for phases in split)
        ),
    )


def _parts(each: Judgement) -> dict[str, float]:
    phases = each.summary.phases
    return {phase: phases.get(phase, 0.0) for phase in PHASES}


def _category(each: Judgement, rows: Sequence[Judgement]) -> str:
    cell = each.summary.cell
    several = len({other.summary.cell.batch_samples for other in rows}) > 1
    return f"{cell.num_ranks} {printable(cell.method)}{f' {cell.batch_samples}' if several else ''}"


def _part(phase: str, place: int, rows: Sequence[Judgement]) -> Part:
    parts = [_parts(each) for each in rows]
    return Part(
        name=PHASES[phase],
        mark=Mark(colour=place + 1, symbol="circle"),
        heights=tuple(each[phase] / MILLISECOND_S for each in parts),
        hovers=tuple(
            (way(row.summary.cell), f"{PHASES[phase]}: {each[phase] / MILLISECOND_S:.3g} ms")
            for row, each in zip(rows, parts, strict=True)
        ),
    )


def _words(each: Judgement) -> str:
    parts = _parts(each)
    whole = sum(parts.values())
    told = ", ".join(
        f"{PHASES[phase]} {format_percent(round(spent / whole, 3))}"
        for phase, spent in sorted(parts.items(), key=lambda pair: -pair[1])
        if spent
    )
    return f"{way(each.summary.cell)}: {told}"


SECTION: Final[Section[SweepNow]] = Section(
    name="phases", title="Where a step goes", needs=("swept",), blocks=_blocks
)
