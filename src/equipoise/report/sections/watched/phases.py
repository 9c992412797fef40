"""Where the steps of watched runs go, by phase."""

from typing import Final

from equipoise.advice.measured.watched_now import WatchedNow, WatchedRun
from equipoise.report.blocks import Block, Panels, note, prose
from equipoise.report.charts import BarChart, Mark, Part
from equipoise.report.section import Section
from equipoise.report.sweep_text import PHASES
from equipoise.report.watched_text import begun, clock, ranks
from equipoise.report.words import sentence
from equipoise.units import MILLISECOND_S, format_percent

MOST_BARS: Final = 12


def _blocks(findings: WatchedNow) -> tuple[Block, ...]:
    runs = findings.split[:MOST_BARS]
    intro = prose(
        "A bar is the median step of a run, by phase. Exposed communication is what the step waits for; "
        "what computing hides is not in it."
    )
    cut = len(findings.split) > MOST_BARS
    more = (note(f"The newest {MOST_BARS} runs are shown."),) if cut else ()
    return (intro, Panels(charts=(_chart(runs),), legend="Phase"), *more)


def _chart(runs: tuple[WatchedRun, ...]) -> BarChart:
    is_alike = len({run.num_ranks for run in runs}) == 1
    whole = [sum(run.phases.get(phase, 0.0) for phase in PHASES) for run in runs]
    return BarChart(
        name="watched-phases",
        title="A step of each run",
        subtitle="when it was begun below; its milliseconds above",
        alternative=sentence(f"{'; '.join(map(_words, runs))}."),
        x_title="begun, UTC" if is_alike else "begun, UTC; ranks",
        y_title="ms a step",
        categories=tuple(
            clock(run, runs) if is_alike else f"{clock(run, runs)}, {ranks(run)}" for run in runs
        ),
        labels=tuple(f"{each / MILLISECOND_S:.3g}" for each in whole),
        limits=(0.0, max(whole) / MILLISECOND_S),
        series=tuple(
            _part(phase, place, runs)
            for place, phase in enumerate(PHASES)
            if any(run.phases.get(phase) for run in runs)
        ),
    )


def _part(phase: str, place: int, runs: tuple[WatchedRun, ...]) -> Part:
    spent = [run.phases.get(phase, 0.0) / MILLISECOND_S for run in runs]
    return Part(
        name=PHASES[phase],
        mark=Mark(colour=place + 1, symbol="circle"),
        heights=tuple(spent),
        hovers=tuple(
            (f"{begun(run)}, {ranks(run)}", f"{PHASES[phase]}: {each:.3g} ms")
            for run, each in zip(runs, spent, strict=True)
        ),
    )


def _words(run: WatchedRun) -> str:
    whole = sum(run.phases.get(phase, 0.0) for phase in PHASES)
    told = sorted(((run.phases.get(phase, 0.0), phase) for phase in PHASES), reverse=True)
    parts = ", ".join(
        f"{PHASES[phase]} {format_percent(round(spent / whole, 3))}" for spent, phase in told if spent
    )
    return f"{begun(run)}: {parts}"


SECTION: Final[Section[WatchedNow]] = Section(
    name="phases", title="Where a step goes", needs=("split",), blocks=_blocks
)
