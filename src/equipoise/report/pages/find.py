"""The page of a search for the fastest way to train: measured, predicted, and what cannot run."""

from collections.abc import Iterator, Sequence
from math import exp
from typing import Final

from equipoise.diagnose.method_search import EVIDENCE, EXACT, LOSSY, OTHER, FoundMethod, MethodCandidate
from equipoise.report.blocks import (
    Block,
    Cell,
    Column,
    Page,
    Section,
    Table,
    bullets,
    more_note,
    named,
    note,
    number,
)
from equipoise.report.format import TIMES, capital, plural, printable, ratio, sentence
from equipoise.stats import Interval
from equipoise.units import format_percent

# Of one screen.
_MOST_TRIED: Final = 10
_MOST_PREDICTED: Final = 4
_MOST_REASONS: Final = 3


def _about(found: FoundMethod) -> str:
    space = found.space
    return (
        f"Search for the fastest way to train {printable(space.workload)}, {space.precision}, {space.device}"
    )


def _headline(found: FoundMethod) -> str:
    """The fastest, and its gains."""
    best = found.best
    what = "one device" if best.trial.num_ranks == 1 else f"{best.trial.method} on {best.trial.num_ranks}"
    speed = best.samples_per_s or 0.0
    gains = [
        f"{_ratio(found, other, interval)} of {name}"
        for name, other, interval in (
            ("one device", found.alone, found.over_alone),
            ("plain ddp", found.plain, found.over_plain),
        )
        if other is not None and other is not best
    ]
    text = f"Fastest: {what} at batch {best.trial.batch_samples}, {ratio(speed)} samples/s"
    return sentence(f"{text}; {', '.join(gains)}" if gains else text)


def _ratio(found: FoundMethod, other: MethodCandidate, interval: Interval | None) -> str:
    value = (found.best.samples_per_s or 0.0) / (other.samples_per_s or 1.0)
    if interval is None:
        return f"{value:.2f}{TIMES} (one run each, no range)"
    return f"{value:.2f}{TIMES} ({interval.low:.2f} to {interval.high:.2f})"


def _summary(found: FoundMethod) -> tuple[str, ...]:
    """How many runs it took, how accurate predictions were, and what throughput does not mean."""
    effort = capital(f"{plural(found.num_trials, 'run')} on several devices; {found.stopped}.")
    error = found.median_error_fraction
    accuracy = (
        () if error is None else (f"Predicted throughput was off by {format_percent(error)} (median).",)
    )
    inexact = {each.effect for each in found.tried} & {LOSSY, OTHER}
    warning = (
        f"Throughput is not convergence: only {EXACT} methods use each sample exactly as one "
        "device does; for the "
        f"others see {EVIDENCE}, or leave them out with --exact."
    )
    return (sentence(effort), *accuracy, *((warning,) if inexact else ()))


def _measured(found: FoundMethod) -> list[MethodCandidate]:
    return [each for each in found.tried if each.runs or each.failed]


def _predicted(found: FoundMethod) -> list[MethodCandidate]:
    return [each for each in found.tried if not each.runs and not each.failed]


def _table(name: str, caption: str, candidates: Sequence[MethodCandidate]) -> Table:
    return Table(
        name=name,
        caption=caption,
        columns=(
            Column(title="Strategy", is_header=True),
            Column(title="N", is_number=True),
            Column(title="Batch", is_number=True, meaning="samples per step over all devices"),
            Column(title="Samples/s", is_number=True, meaning="median over runs"),
            Column(title="Runs", is_number=True),
            Column(title="Predicted", is_number=True, meaning="samples per second"),
            Column(title="Error", is_number=True, meaning="of predicted over measured"),
            Column(title="Effect", meaning="on what a sample contributes to training"),
        ),
        rows=tuple(map(_row, candidates)),
    )


def _row(each: MethodCandidate) -> tuple[Cell, ...]:
    trial, step = each.trial, each.predicted_step
    error = None if each.error_log is None else exp(-each.error_log) - 1.0
    return (
        named(trial.method),
        number(trial.num_ranks),
        number(trial.batch_samples),
        Cell(text="failed") if each.failed else number(each.samples_per_s, ratio),
        number(len(each.runs) or None),
        number(None if step is None else step.samples_per_s, ratio),
        number(error, lambda value: f"{100 * value:+.0f} %"),
        named(each.effect),
    )


def _measured_blocks(found: FoundMethod) -> tuple[Block, ...]:
    return (_table("measured", "Measured, fastest first", _measured(found)),)


def _predicted_blocks(found: FoundMethod) -> tuple[Block, ...]:
    left = _predicted(found)
    return (_table("predicted", "Predicted, not run", left),) if left else (note("All were run."),)


def _reasons(found: FoundMethod) -> Iterator[str]:
    """What failed, cannot run here, or could not be predicted."""
    for each in found.tried:
        if each.failed:
            yield sentence(f"Failed: {each.trial.method}: {each.failed}.")
    for refused in found.refused:
        yield sentence(f"Not possible here: {refused.method} on {refused.num_ranks}: {refused.reason}.")
    for each in found.tried:
        if each.not_predicted:
            batch = each.trial.batch_samples
            yield sentence(f"Not predicted: {each.trial.method} at batch {batch}: {each.not_predicted}.")


def _reasons_blocks(found: FoundMethod) -> tuple[Block, ...]:
    reasons = tuple(_reasons(found))
    return (bullets(reasons),) if reasons else (note("Every combination was run or predicted."),)


def _brief(found: FoundMethod, _: int) -> tuple[Block, ...]:
    measured, predicted = _measured(found), _predicted(found)
    shown = [*measured[:_MOST_TRIED], *predicted[:_MOST_PREDICTED]]
    left_out = len(measured) + len(predicted) - len(shown)
    return (
        _table("candidates", "", shown),
        bullets(list(_reasons(found))[:_MOST_REASONS]),
        *map(note, _closing(found)),
        *((more_note(plural(left_out, "combination")),) if left_out else ()),
    )


def _closing(found: FoundMethod) -> tuple[str, ...]:
    return (sentence(f"Runs are kept in {found.folder}; --resume continues from there."),)


FIND: Final[Page[FoundMethod]] = Page(
    title=_about,
    about=_about,
    headline=_headline,
    summary=_summary,
    sections=(
        Section(name="measured", title="Measured", blocks=_measured_blocks),
        Section(name="predicted", title="Predicted, not run", blocks=_predicted_blocks),
        Section(name="reasons", title="Not run", blocks=_reasons_blocks),
    ),
    closing=_closing,
    brief=_brief,
)
