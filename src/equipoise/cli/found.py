"""What `equipoise bench --find` says: what was tried, the best, its gains, how wrong the foretelling was."""

from math import exp
from pathlib import Path
from typing import Any

from equipoise.advice.measured.foretold_steps import LEVEL as FORETOLD_LEVEL
from equipoise.advice.measured.tune import LEVEL, Candidate, Found
from equipoise.advice.measured.ways import EVIDENCE, EXACT, LOSSY, OTHER
from equipoise.cli.output import counted, paragraph, table_text
from equipoise.stats import Interval
from equipoise.units import format_percent, significant

_DASH = "-"
_MOST_UNTRIED = 8


def fields(found: Found, folder: Path) -> dict[str, Any]:
    """The fields of the document."""
    space = found.space
    found_fields: dict[str, Any] = significant(
        {
            "find": {
                "folder": str(folder),
                "workload": space.workload,
                "precision": space.precision,
                "device": space.device,
                "best": _fields(found.best),
                "one_device": _fields(found.alone),
                "plain_ddp": None if found.plain is None else _fields(found.plain),
                "gain_over_one_device": _gain(found, found.alone, found.over_alone),
                "gain_over_plain_ddp": _gain(found, found.plain, found.over_plain),
                "num_candidates": len(found.tried),
                "num_trials": found.num_trials,
                "stopped": found.stopped,
                "foretold_median_error_fraction": found.median_error_fraction,
                "candidates": [_fields(each) for each in found.tried],
                "refused": [
                    {
                        "strategy": each.method,
                        "num_accelerators": each.num_ranks,
                        "batch": each.batch_samples,
                        "reason": each.reason,
                    }
                    for each in found.refused
                ],
            }
        }
    )
    return found_fields


def _fields(each: Candidate) -> dict[str, Any]:
    step = each.foretold_step
    return {
        "strategy": each.cell.method,
        "num_accelerators": each.cell.num_ranks,
        "batch": each.cell.batch_samples,
        "effect": each.effect,
        "samples_per_s": each.samples_per_s,
        "num_runs": len(each.runs),
        "failed": each.failed,
        "foretold": None
        if step is None
        else {
            "samples_per_s": step.samples_per_s,
            "step_s": {"value": step.step_s.value, "low": step.step_s.low, "high": step.step_s.high},
            "level": FORETOLD_LEVEL,
            "own_s": step.own_s,
            "slowed_s": step.slowed_s,
            "waiting_s": step.waiting_s,
            "added_s": step.added_s,
            "exposed_s": step.exposed_s,
            "sent_bytes": step.sent_bytes,
            "num_messages": step.num_messages,
        },
        "not_foretold": each.not_foretold,
    }


def _gain(found: Found, other: Candidate | None, interval: Interval | None) -> dict[str, Any] | None:
    best = found.best.samples_per_s
    if other is None or other.samples_per_s is None or best is None:
        return None
    return {
        "value": best / other.samples_per_s,
        "low": interval and interval.low,
        "high": interval and interval.high,
        "level": LEVEL,
    }


def text(found: Found, folder: Path) -> str:
    """The whole answer."""
    tried = [each for each in found.tried if each.runs or each.failed]
    left = [each for each in found.tried if not each.runs and not each.failed]
    parts = [
        paragraph(_verdict(found)),
        f"Tried: {counted(found.num_trials, 'run', 'runs')} on several devices; {found.stopped}.\n"
        + _table(tried),
    ]
    if left:
        more = len(left) - _MOST_UNTRIED
        ending = f"and {more} more\n" if more > 0 else ""
        parts.append(f"Foretold, not tried:\n{_table(left[:_MOST_UNTRIED])}{ending}")
    parts += [paragraph(sentence) for sentence in _notes(found)]
    parts.append(paragraph(f"Runs are kept in {folder}; --resume goes on from there."))
    return "\n".join(parts)


def _verdict(found: Found) -> str:
    best = found.best
    ways = "one device alone" if best.cell.num_ranks == 1 else f"{best.cell.method} on {best.cell.num_ranks}"
    speed = best.samples_per_s or 0.0
    sentence = (
        f"Fastest found for {found.space.workload}: {ways} at batch {best.cell.batch_samples}, "
        f"{speed:,.4g} samples/s"
    )
    gains = [
        f"{_ratio(found, other, interval)} of {name}"
        for name, other, interval in (
            ("one device", found.alone, found.over_alone),
            ("plain ddp", found.plain, found.over_plain),
        )
        if other is not None and other is not best
    ]
    return f"{sentence}: {', '.join(gains)}." if gains else f"{sentence}."


def _ratio(found: Found, other: Candidate, interval: Interval | None) -> str:
    value = (found.best.samples_per_s or 0.0) / (other.samples_per_s or 1.0)
    if interval is None:
        return f"{value:.2f}x (one run each, no interval)"
    return f"{value:.2f}x ({interval.low:.2f} to {interval.high:.2f})"


def _table(candidates: list[Candidate]) -> str:
    rows = [
        (
            each.cell.method,
            str(each.cell.num_ranks),
            str(each.cell.batch_samples),
            "failed" if each.failed else _rate(each.samples_per_s),
            str(len(each.runs)) if each.runs else _DASH,
            _rate(each.foretold_step.samples_per_s if each.foretold_step else None),
            _error(each),
            each.effect,
        )
        for each in candidates
    ]
    head = ("strategy", "devices", "batch", "samples/s", "runs", "foretold", "error", "learning")
    return table_text(head, rows, align="<>>>>>><")


def _rate(samples_per_s: float | None) -> str:
    return _DASH if samples_per_s is None else f"{samples_per_s:,.4g}"


def _error(each: Candidate) -> str:
    return _DASH if each.error_log is None else f"{100 * (exp(-each.error_log) - 1):+.0f} %"


def _notes(found: Found) -> list[str]:
    notes = []
    if found.median_error_fraction is not None:
        notes.append(
            f"Foretold speeds of what was tried on several devices were off by "
            f"{format_percent(found.median_error_fraction)} in the median."
        )
    effects = {each.effect for each in found.tried}
    if effects & {LOSSY, OTHER}:
        notes.append(
            f"Samples per second is not learning: only what is {EXACT} learns the same from a sample. "
            f"Of the others {EVIDENCE} says how far they were seen to; --exact leaves them out."
        )
    failed = [f"{each.cell.method}: {each.failed}" for each in found.tried if each.failed]
    notes += [f"Failed: {each}." for each in failed]
    notes += [
        f"Not possible here: {each.method} on {each.num_ranks}: {each.reason}." for each in found.refused
    ]
    notes += [
        f"Not enough evidence to foretell {each.cell.method} at batch {each.cell.batch_samples}: "
        f"{each.not_foretold}."
        for each in found.tried
        if each.not_foretold
    ]
    return notes
