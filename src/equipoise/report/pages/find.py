"""The page of a search for the fastest strategy, with its JSON document: measured, predicted, cannot run."""

from collections.abc import Iterator
from math import exp
from typing import Any, Final

from equipoise.diagnose.method_search import EVIDENCE, EXACT, LOSSY, OTHER, FoundMethod, MethodCandidate
from equipoise.intervals import LEVEL, Interval
from equipoise.report.blocks import (
    Block,
    Cell,
    Page,
    Section,
    bullets,
    more_note,
    names,
    note,
    numbers,
    table_of,
    words,
)
from equipoise.report.format import TIMES, capital, printable, ratio, sentence
from equipoise.report.json import fields_of, picked
from equipoise.units import format_percent, plural, significant

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


_COLUMNS: Final = (
    names("Strategy", "trial.method"),
    numbers("N", "trial.num_ranks"),
    numbers("Batch", "trial.batch_samples", meaning="samples per step over all devices"),
    numbers(
        "Samples/s",
        lambda each: Cell(text="failed") if each.failed else each.samples_per_s,
        ratio,
        meaning="median over runs",
    ),
    numbers("Runs", lambda each: len(each.runs) or None),
    numbers("Predicted", "predicted_step.samples_per_s", ratio, meaning="samples per second"),
    numbers(
        "Error",
        lambda each: None if each.error_log is None else exp(-each.error_log) - 1.0,
        lambda value: f"{100 * value:+.0f} %",
        meaning="of predicted over measured",
    ),
    words("Effect", "effect", meaning="on what a sample contributes to training"),
)


def _measured_blocks(found: FoundMethod) -> tuple[Block, ...]:
    return (table_of("measured", _COLUMNS, _measured(found), caption="Measured, fastest first"),)


def _predicted_blocks(found: FoundMethod) -> tuple[Block, ...]:
    left = _predicted(found)
    if not left:
        return (note("All were run."),)
    return (table_of("predicted", _COLUMNS, left, caption="Predicted, not run"),)


def _reasons(found: FoundMethod) -> Iterator[str]:
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
        table_of("candidates", _COLUMNS, shown),
        bullets(list(_reasons(found))[:_MOST_REASONS]),
        *map(note, _closing(found)),
        *((more_note((left_out, "combination")),) if left_out else ()),
    )


def _closing(found: FoundMethod) -> tuple[str, ...]:
    return (sentence(f"Runs are kept in {found.folder}; --resume continues from there."),)


FIND: Final[Page[FoundMethod]] = Page(
    title=_about,
    about=_about,
    headline=_headline,
    summary=_summary,
    sections=(
        Section("measured", "Measured", _measured_blocks),
        Section("predicted", "Predicted, not run", _predicted_blocks),
        Section("reasons", "Not run", _reasons_blocks),
    ),
    closing=_closing,
    brief=_brief,
)


# --- document


WAY_NAMES: Final = {"method": "strategy", "num_ranks": "num_accelerators", "batch_samples": "batch"}


def find_fields(found: FoundMethod) -> dict[str, Any]:
    """The document of a search."""
    found_fields: dict[str, Any] = significant(
        {
            "find": {
                "folder": str(found.folder),
                **picked(found.space, "workload", "precision", "device"),
                "best": _candidate(found.best),
                "one_device": _candidate(found.alone),
                "plain_ddp": None if found.plain is None else _candidate(found.plain),
                "gain_over_one_device": _gain(found, found.alone, found.over_alone),
                "gain_over_plain_ddp": _gain(found, found.plain, found.over_plain),
                "num_candidates": len(found.tried),
                "num_trials": found.num_trials,
                "stopped": found.stopped,
                "predicted_median_error_fraction": found.median_error_fraction,
                "candidates": [_candidate(each) for each in found.tried],
                "refused": [fields_of(each, **WAY_NAMES) for each in found.refused],
            }
        }
    )
    return found_fields


def _candidate(each: MethodCandidate) -> dict[str, Any]:
    step = each.predicted_step
    return {
        **picked(each.trial, *WAY_NAMES, **WAY_NAMES),
        **picked(each, "effect", "samples_per_s"),
        "num_runs": len(each.runs),
        "failed": each.failed,
        "predicted": None
        if step is None
        else {
            "samples_per_s": step.samples_per_s,
            **fields_of(step, method=None, num_ranks=None, batch_samples=None),
            "step_s": fields_of(step.step_s, level=None),
            "level": LEVEL,
        },
        "not_predicted": each.not_predicted,
    }


def _gain(
    found: FoundMethod, other: MethodCandidate | None, interval: Interval | None
) -> dict[str, Any] | None:
    best = found.best.samples_per_s
    if other is None or other.samples_per_s is None or best is None:
        return None
    return {
        "value": best / other.samples_per_s,
        **picked(interval, "low", "high"),
        "level": LEVEL,
    }
