"""Steps as pages of sweeps and watched loops show them: by phase, and their times with ranges."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from equipoise.bench.phases import EXPOSED
from equipoise.bench.summary import Spread
from equipoise.report.blocks import Cell, number
from equipoise.report.charts import BarChart
from equipoise.report.format import ABSENT, DASH, ratio, sentence
from equipoise.report.pages.answer.breakdowns import Stack
from equipoise.units import MILLISECOND_S

PHASES: Final[Mapping[str, str]] = {
    "input": "waiting for input",
    "forward": "forward pass",
    "backward": "backward pass",
    EXPOSED: "exposed communication",
    "optimizer": "optimizer",
    "rest": "rest",
}
PHASES_INTRO: Final = (
    "A bar is the median step, by phase. Exposed communication is what the step waits for; overlapped "
    "communication is not in it."
)


def step_words(found: Spread) -> str:
    """The seconds of a step with their range, in milliseconds."""
    text, ends = _milliseconds(found)
    return f"{text} ms ({ends})" if ends else f"{text} ms"


def _milliseconds(found: Spread) -> tuple[str, str | None]:
    """Milliseconds and the ends of their range, with as many digits as distinguish these."""
    low, high = found.low, found.high
    if low is None or high is None or low == high:
        return f"{found.value / MILLISECOND_S:.3g}", None
    for digits in (3, 4, 5):
        ends = [f"{each / MILLISECOND_S:.{digits}g}" for each in (low, high)]
        if ends[0] != ends[1]:
            break
    return f"{found.value / MILLISECOND_S:.{digits}g}", DASH.join(ends)


def milliseconds(found: Spread | None) -> Cell:
    """Seconds in milliseconds, their range below."""
    if found is None:
        return Cell(text=ABSENT)
    text, ends = _milliseconds(found)
    return Cell(text=text, key=found.value, detail=ends)


def spread_cell(found: Spread | None, form: Callable[[float], str] = ratio) -> Cell:
    """A number with its range below."""
    if found is None:
        return Cell(text=ABSENT)
    return number(found.value, form, detail=_within(found, form))


def _within(found: Spread, form: Callable[[float], str]) -> str | None:
    """The ends of a range; None where there is none, or where its digits do not distinguish them."""
    if found.low is None or found.high is None:
        return None
    ends = (form(found.low), form(found.high))
    return None if ends[0] == ends[1] else DASH.join(ends)


def step_chart(
    name: str,
    title: str,
    x_title: str,
    bars: Sequence[tuple[str, Mapping[str, float]]],
    *,
    names: Sequence[str],
) -> BarChart:
    """Steps by phase. bars: the label below each, and its seconds by phase. names: their full names."""
    parts = [{phase: spent.get(phase, 0.0) for phase in PHASES} for _, spent in bars]
    whole = [sum(each.values()) for each in parts]
    stack = Stack(bars=tuple(zip(names, parts, strict=True)), titles=PHASES)
    return BarChart(
        name=name,
        title=title,
        subtitle="milliseconds above each bar",
        alternative=sentence(stack.words()),
        x_title=x_title,
        y_title="ms per step",
        categories=tuple(category for category, _ in bars),
        labels=tuple(f"{each / MILLISECOND_S:.3g}" for each in whole),
        limits=(0.0, max(whole) / MILLISECOND_S),
        series=stack.series(MILLISECOND_S),
    )
