"""What the page of watched loops says first: what trains now, how long its steps take."""

from equipoise.advice.measured.watched_now import WatchedNow, WatchedRun
from equipoise.bench.summary import LEVEL
from equipoise.report.sweep_text import PHASES, per_second, spread_ms
from equipoise.report.watched_text import ranks, state
from equipoise.report.words import count, plural, printable, sentence
from equipoise.units import format_percent

MOST_GAINS = 2


def about(findings: WatchedNow) -> str:
    """Which folder."""
    return f"Your training loops in {printable(findings.name)}"


def headline(findings: WatchedNow) -> str:
    """The newest run in one sentence."""
    name = printable(findings.name)
    if not findings.runs:
        what = "can be read" if findings.unread else "has written yet"
        return f"{name}: no watched run {what}"
    run = findings.runs[0]
    what = f"{printable(run.workload or 'a model')} on {ranks(run)}"
    if run.step_s is None:
        return f"{name}: {what}; {state(run)}"
    return f"{name}: {what}, {spread_ms(run.step_s)} a step; {state(run)}"


def summary(findings: WatchedNow) -> tuple[str, ...]:
    """What its steps say, and what there is besides."""
    newest = _of_run(findings.runs[0]) if findings.runs else ()
    others = len(findings.runs) - 1 + findings.num_older
    more = (f"{plural(others, 'earlier run')} in this folder.",) if others > 0 else ()
    unread = len(findings.unread)
    lost = (f"{plural(unread, 'run')} cannot be read: see below.",) if unread else ()
    return (*newest, *more, *lost)


def _of_run(run: WatchedRun) -> tuple[str, ...]:
    if run.step_s is None:
        return (
            ("Phases come when its steps have become steady: after a few dozen.",) if run.is_running else ()
        )
    rate = "" if run.samples_per_s is None else f", {per_second(run.samples_per_s.value)}"
    steady = () if run.is_steady else ("Step times still had a trend: they are not steady.",)
    return (
        f"{count(run.num_steps)} steps count{rate}{_largest(run)}.",
        *(sentence(f"{each[:1].upper()}{each[1:]}.") for each in run.gains[:MOST_GAINS]),
        *steady,
    )


def _largest(run: WatchedRun) -> str:
    """The phase that takes most of a step; nothing where no phases were told."""
    told = {name: run.phases[name] for name in PHASES if name in run.phases}
    if not told:
        return ""
    most = max(told, key=lambda name: told[name])
    return f"; {format_percent(round(told[most] / sum(told.values()), 3))} of a step is {PHASES[most]}"


def closing(findings: WatchedNow) -> tuple[str, ...]:
    """What it rests on."""
    cut = any(not run.is_whole for run in findings.runs)
    ranges = (
        f"Ranges hold the median at {format_percent(LEVEL)} over the steps of one run: "
        "they do not say how runs differ."
    )
    return (
        "Measured in the training itself by equipoise.watch.",
        ranges,
        *(("Of long runs the latest steps of at most 64 ranks are read.",) if cut else ()),
    )
