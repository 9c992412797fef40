"""How long steps took as training went on."""

from typing import Final

from equipoise.advice.measured.watched_now import WatchedNow, WatchedRun
from equipoise.report.blocks import Block, Panels
from equipoise.report.charts import SYMBOLS, Axis, Chart, Mark, Series
from equipoise.report.section import Section
from equipoise.report.watched_text import begun, clock
from equipoise.report.words import count, sentence
from equipoise.units import MILLISECOND_S

MOST_LINES: Final = 4


def _blocks(findings: WatchedNow) -> tuple[Block, ...]:
    runs = findings.drawn[:MOST_LINES]
    words = "; ".join(map(_words, runs))
    chart = Chart(
        name="watched-course",
        title="Steps as training goes on",
        subtitle="of the slowest rank, warm-up included; a point is a median of neighbours in long runs",
        alternative=sentence(f"{words}."),
        x=Axis(title="update"),
        y=Axis(title="ms a step", starts_at_zero=True),
        series=tuple(_series(run, place, runs) for place, run in enumerate(runs)),
    )
    return (Panels(charts=(chart,), legend="Begun, UTC"),)


def _series(run: WatchedRun, place: int, runs: tuple[WatchedRun, ...]) -> Series:
    assert run.course is not None
    heights = tuple(each / MILLISECOND_S for each in run.course.step_s)
    return Series(
        name=clock(run, runs),
        mark=Mark(colour=place + 1, symbol=SYMBOLS[place]),
        x=run.course.steps,
        y=heights,
        hovers=tuple(
            (begun(run), f"update {count(step)}: {height:.3g} ms")
            for step, height in zip(run.course.steps, heights, strict=True)
        ),
        is_line=True,
    )


def _words(run: WatchedRun) -> str:
    assert run.course is not None
    first, last = run.course.step_s[0] / MILLISECOND_S, run.course.step_s[-1] / MILLISECOND_S
    return f"{begun(run)}: {first:.3g} ms at first, {last:.3g} ms at update {count(run.course.steps[-1])}"


SECTION: Final[Section[WatchedNow]] = Section(
    name="course", title="As training goes on", needs=("drawn",), blocks=_blocks
)
