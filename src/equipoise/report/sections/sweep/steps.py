"""What steps take, how much faster several ranks are than one, and every configuration in a table."""

from collections.abc import Sequence
from typing import Final

from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.advice.measured.swept import Judgement
from equipoise.bench.summary import LEVEL
from equipoise.report.blocks import Badge, Block, Cell, Column, Heading, Panels, Table, note, prose
from equipoise.report.charts import Axis, Chart, Level, Mark, Series
from equipoise.report.section import Section
from equipoise.report.sweep_text import (
    Subject,
    method_marks,
    milliseconds,
    subject_name,
    subjects,
    times,
    way,
    within,
)
from equipoise.report.words import ABSENT, TIMES, count, plural, printable, ratio, sentence
from equipoise.units import MILLISECOND_S, format_percent

FEWEST_SIZES: Final = 2
COLUMNS: Final = (
    Column(title="Strategy", is_header=True),
    Column(title="Ranks", is_number=True),
    Column(title="Batch", is_number=True, meaning="samples of a step over all ranks"),
    Column(title="Step, ms", is_number=True, meaning="median over repetitions; its interval below"),
    Column(title="Samples/s", is_number=True, meaning="of all ranks together"),
    Column(title="Of one device", is_number=True, meaning="samples per second against one device"),
    Column(title="Efficiency", is_number=True, meaning="of one device, by the number of ranks"),
    Column(title="Of plain ddp", is_number=True, meaning="samples per second against plain data parallelism"),
    Column(title="Repetitions", is_number=True),
)


def _blocks(findings: SweepNow) -> tuple[Block, ...]:
    timed = [(subject, [each for each in rows if each.summary.timed]) for subject, rows in subjects(findings)]
    blocks = [block for subject, rows in timed if rows for block in _of_subject(subject, rows)]
    if not blocks:
        return (prose("No run that timed its steps has ended yet."),)
    told = note(
        f"Medians over repetitions in fresh processes; ranges are intervals at {format_percent(LEVEL)}. "
        "A repetition alone has no interval."
    )
    return (*blocks, told)


def _of_subject(subject: Subject, rows: Sequence[Judgement]) -> tuple[Block, ...]:
    name = subject_name(subject)
    identifier = f"steps-{'-'.join(subject)}"
    charts = _charts(identifier, name, rows)
    table = Table(
        name=identifier,
        caption=plural(len(rows), "configuration"),
        columns=COLUMNS,
        rows=tuple(map(_row, rows)),
    )
    panels = (Panels(charts=charts, legend="Strategy"),) if charts else ()
    return (Heading(name=f"of-{identifier}", text=name), *panels, table)


def _row(each: Judgement) -> tuple[Cell, ...]:
    cell, summary = each.summary.cell, each.summary
    rate = summary.samples_per_s
    plain = None if cell.method == "ddp" else each.over_plain
    return (
        Cell(text=printable(cell.method), key=cell.method, badge=_badge(each)),
        Cell(text=count(cell.num_ranks), key=cell.num_ranks),
        Cell(text=count(cell.batch_samples), key=cell.batch_samples),
        milliseconds(summary.step_s),
        Cell(text=ABSENT) if rate is None else Cell(text=ratio(rate.value), key=rate.value),
        Cell(text=ABSENT) if each.is_alone else times(each.speedup),
        Cell(text=ABSENT)
        if each.efficiency is None or each.is_alone
        else Cell(text=format_percent(round(each.efficiency, 3)), key=each.efficiency),
        times(plain),
        Cell(text=count(len(summary.timed)), key=len(summary.timed)),
    )


def _badge(each: Judgement) -> Badge | None:
    """What is to be known before the row is relied on."""
    if each.summary.failed:
        return Badge(text=f"{len(each.summary.failed)} failed", tone="bad")
    if not each.summary.is_steady:
        return Badge(text="not steady", tone="quiet")
    if each.speedup is None or each.is_alone:
        return None
    most = each.speedup.value if each.speedup.high is None else each.speedup.high
    return Badge(text="slower than one", tone="bad") if most < 1.0 else None


def _charts(identifier: str, name: str, rows: Sequence[Judgement]) -> tuple[Chart, ...]:
    """Speedup against ranks, where several sizes were run against one device."""
    several = [each for each in rows if each.speedup is not None and not each.is_alone]
    marks = method_marks(several)
    series = tuple(
        _series(method, [each for each in several if each.summary.cell.method == method], mark)
        for method, mark in marks.items()
    )
    if len({each.summary.cell.num_ranks for each in several}) < FEWEST_SIZES:
        return ()
    words = "; ".join(f"{way(each.summary.cell)}: {_speedup(each)} of one" for each in several)
    return (
        Chart(
            name=identifier,
            title="Speed against one device",
            subtitle="samples per second of all ranks over those of one",
            alternative=sentence(f"{name}. {words}."),
            x=Axis(title="ranks", is_log=True),
            y=Axis(title="times one device", starts_at_zero=True),
            series=series,
            level=Level(y=1.0, text="one device"),
        ),
    )


def _series(method: str, rows: Sequence[Judgement], mark: Mark) -> Series:
    ordered = sorted(rows, key=lambda each: each.summary.cell.num_ranks)
    return Series(
        name=printable(method),
        mark=mark,
        x=tuple(float(each.summary.cell.num_ranks) for each in ordered),
        y=tuple(each.speedup.value for each in ordered if each.speedup is not None),
        hovers=tuple(_hover(each) for each in ordered),
        is_line=len({each.summary.cell.num_ranks for each in ordered}) == len(ordered) >= FEWEST_SIZES,
    )


def _hover(each: Judgement) -> tuple[str, ...]:
    step_s = each.summary.step_s
    step = "" if step_s is None else f"{step_s.value / MILLISECOND_S:.3g} ms a step"
    return (way(each.summary.cell), f"{_speedup(each)} of one device", step)


def _speedup(each: Judgement) -> str:
    assert each.speedup is not None
    ends = within(each.speedup)
    return f"{ratio(each.speedup.value)}{TIMES}{f' ({ends})' if ends else ''}"


SECTION: Final[Section[SweepNow]] = Section(name="steps", title="Steps", needs=("swept",), blocks=_blocks)
