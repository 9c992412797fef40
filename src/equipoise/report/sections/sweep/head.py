"""What a sweep's page says first: how far it is, and what the runs that have ended tell."""

from equipoise.advice.measured.sweep_now import SweepNow
from equipoise.report.words import plural, printable, sentence
from equipoise.units import format_duration


def about(findings: SweepNow) -> str:
    """Which sweep."""
    return f"Your sweep {printable(findings.swept.name)}"


def headline(findings: SweepNow) -> str:
    """How far it is, in one sentence."""
    now, failed = findings.under_way, len(findings.swept.failed)
    done = f"{now.num_finished} of {plural(now.num_planned, 'run')}"
    state = "all have ended" if now.is_whole else "it is running" if now.is_running else "it stands still"
    lost = f", {failed} failed" if failed else ""
    return f"{printable(findings.swept.name)}: {done}{lost}; {state}"


def summary(findings: SweepNow) -> tuple[str, ...]:
    """What it tells so far, and how to go on with it."""
    now, swept = findings.under_way, findings.swept
    left = () if now.left_s is None else (f"About {format_duration(now.left_s)} left, at its pace.",)
    stopped = not now.is_whole and not now.is_running
    resume = ("The same command with --resume goes on with it.",) if stopped else ()
    every = ("Every run has failed so far.",) if swept.finished and swept.refusal else ()
    return (*left, *resume, *every, *map(sentence, swept.meanings))


def closing(findings: SweepNow) -> tuple[str, ...]:
    """What it rests on."""
    settings = ", ".join(
        f"{printable(name)} {printable(value)}" for name, value in findings.swept.settings.items()
    )
    return (
        "Measured on the machines of this sweep, under the conditions that its cells state.",
        *((f"Settings: {settings}.",) if settings else ()),
    )
