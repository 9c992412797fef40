"""The page of timed collectives, with its JSON document: latencies and rates, and whether they are normal."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from equipoise.bench.collectives import CollectiveRun, bus_fraction
from equipoise.calibration.collective_verdicts import CollectiveFit, Links, Verdict
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
    number,
    numbers,
    table_of,
    words,
)
from equipoise.report.format import ABSENT, DASH, listed, sentence
from equipoise.report.json import fields_of, picked
from equipoise.units import GIB, KIB, MIB, MICROSECOND_S, SI_PREFIXES, format_percent, plural, significant

_GB: Final = SI_PREFIXES["G"]
_EXPONENT_FROM: Final = 999.5
# Of one screen.
_MOST_ROWS: Final = 12
_MOST_VERDICTS: Final = 4
_MOST_NAMED: Final = 2


# --- words


def _title(run: CollectiveRun) -> str:
    nodes = "" if run.num_nodes in {None, 1} else f" on {run.num_nodes} nodes"
    return f"{run.operation} over {plural(run.num_ranks, 'rank')}{nodes}"


def _size(num_bytes: int) -> str:
    """A size in powers of 1024, as in options of nccl-tests.

    >>> _size(8), _size(1536), _size(8 * 2**30)
    ('8 B', '1.5 KiB', '8 GiB')
    """
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.3g} {name}"
    return f"{num_bytes} B"


def _three_digits(value: float) -> str:
    """A number to three significant digits, or more where an exponent would be needed.

    >>> _three_digits(0.11684), _three_digits(35.44), _three_digits(4571.0)
    ('0.117', '35.4', '4571')
    """
    return f"{value:.3g}" if value < _EXPONENT_FROM else f"{value:.0f}"


def _measured(verdict: Verdict) -> tuple[float, str]:
    """The unit of a measured figure as a factor, and its name with the unit."""
    if verdict.quantity != "bus_byte_per_s":
        return MICROSECOND_S, "µs latency"
    unit, name = _rate_unit(verdict.measured)
    return unit, f"{name} bus rate"


def _verdict_words(verdict: Verdict) -> str:
    unit, name = _measured(verdict)
    found = f"{_title(verdict.run)}, {_size(verdict.payload_bytes)}: {verdict.measured / unit:.4g} {name}"
    if verdict.low is not None and verdict.high is not None:
        expected = f"{verdict.low / unit:.3g} to {verdict.high / unit:.3g}"
        found += f" is {verdict.verdict}, expected {expected}"
    else:
        found += f", {verdict.verdict}"
    return sentence(f"{found}: {verdict.because}" + ("" if verdict.because.endswith("?") else "."))


def _verdicts(found: Links) -> Iterator[str]:
    """A sentence per verdict; verdicts without evidence are grouped by reason."""
    unknown = [each for each in found.verdicts if each.verdict == "unknown"]
    known = [each for each in found.verdicts if each.verdict != "unknown"]
    yield from map(_verdict_words, sorted(known, key=lambda each: each.verdict == "normal"))
    for reason in dict.fromkeys(each.because for each in unknown):
        same = [each for each in unknown if each.because == reason]
        if len(same) == 1:
            yield _verdict_words(same[0])
        else:
            names = ", ".join(dict.fromkeys(each.run.operation for each in same))
            yield sentence(f"No verdict on {plural(len(same), 'figure')} ({names}): {reason}.")


def _problems(found: Links) -> tuple[str, ...]:
    """Runs without a fit, unused rows, and notes."""
    return (
        *(sentence(f"{_title(run)}: no fit: {reason}.") for run, reason in found.unfitted),
        *(
            sentence(f"{each.count} not used: {each.first.detail} (first: {each.first.where}).")
            for _, each in sorted(found.reading.rejected.kinds.items())
        ),
        *(sentence(f"Note: {each}.") for each in found.reading.notes),
    )


def _about(found: Links) -> str:
    reading = found.reading
    refused = sum(each.count for each in reading.rejected.kinds.values())
    rest = f"; {refused} not used" if refused else ""
    return f"{plural(reading.num_rows, 'row')} of {plural(len(reading.runs), 'run')} of collectives{rest}"


def _headline(found: Links) -> str:
    known = [each.verdict for each in found.verdicts if each.verdict != "unknown"]
    if not known:
        return "No verdict: nothing comparable is known"
    odd = [words for name in ("slow", "fast") if (words := _abnormal(found, name))]
    num_normal = known.count("normal")
    if not odd:
        return f"{plural(len(known), 'figure')} compared: {num_normal} normal"
    rest = [f"{num_normal} of {plural(len(known), 'figure')} normal"] if num_normal else []
    return "; ".join([*odd, *rest])


def _abnormal(found: Links, verdict: str) -> str:
    """The figures with a verdict, e.g. `Slow: bus rate of all_reduce over 8 ranks`; empty if none."""
    same = dict.fromkeys(
        f"{_measured(each)[1].partition(' ')[2]} of {_title(each.run)}"
        for each in found.verdicts
        if each.verdict == verdict
    )
    return f"{verdict.capitalize()}: {listed(same, _MOST_NAMED)}" if same else ""


# --- fits


def _fits_blocks(
    fits: Sequence[CollectiveFit], *, caption: str = "Latency and rate by operation", most: int | None = None
) -> tuple[Block, ...]:
    """A table with one row per fit, followed by one per range of sizes. most: maximum number of rows."""
    # The largest unit in which the fastest rate is at least one.
    rates = [fit.curve.byte_per_s.value for fit in fits if fit.curve.byte_per_s]
    unit, name = _rate_unit(max(rates, default=_GB))
    columns = (
        names("Operation", "operation"),
        numbers("N", "num_ranks", meaning="number of ranks"),
        words("Sizes", "sizes"),
        numbers("Latency, µs", "latency"),
        numbers(f"Payload, {name}", "payload"),
        numbers(f"Bus, {name}", "bus"),
    )
    rows = [row for fit in fits for row in _fit_rows(fit, unit)][:most]
    legend = (
        f"Time is latency + payload / rate in each range of sizes; ranges at {format_percent(LEVEL)}. "
        f"{DASH}: not determined by the sizes measured. Bus: as busbw counts."
    )
    return (table_of("fits", columns, rows, caption=caption), note(legend if fits else ""))


def _rate_unit(byte_per_s: float) -> tuple[float, str]:
    return (_GB, "GB/s") if byte_per_s >= _GB else (SI_PREFIXES["M"], "MB/s")


def _fit_rows(fit: CollectiveFit, unit: float) -> Iterator[dict[str, object]]:
    """The cells of a fit by column, then the cells of each of its ranges."""
    run, curve = fit.run, fit.curve
    yield {
        "operation": run.operation,
        "num_ranks": run.num_ranks,
        "sizes": _span(curve.regimes[0].from_bytes, curve.regimes[-1].to_bytes),
        "latency": _ranged(curve.latency_s, MICROSECOND_S),
        "payload": _ranged(curve.byte_per_s, unit),
        "bus": number(fit.bus_byte_per_s, lambda value: _three_digits(value / unit)),
    }
    factor = bus_fraction(run.operation, run.num_ranks)
    for each in curve.regimes if len(curve.regimes) > 1 else ():
        rate = None if math.isinf(each.byte_per_s) else each.byte_per_s / unit
        yield {
            "operation": Cell(text=""),
            "num_ranks": Cell(text=""),
            "sizes": _span(each.from_bytes, each.to_bytes),
            "latency": number(each.latency_s / MICROSECOND_S, _three_digits),
            "payload": number(rate, _three_digits),
            "bus": number(None if rate is None else rate * factor, _three_digits),
        }


def _span(first: int, last: int) -> str:
    return f"{_size(first)} to {_size(last)}"


def _ranged(interval: Interval | None, unit: float) -> Cell:
    if interval is None:
        return Cell(text=ABSENT)
    high = "?" if math.isinf(interval.high) else _three_digits(interval.high / unit)
    ends = f"{_three_digits(interval.low / unit)}{DASH}{high}"
    return Cell(text=f"{_three_digits(interval.value / unit)} ({ends})", key=interval.value)


# --- verdicts


def _verdicts_blocks(found: Links) -> tuple[Block, ...]:
    """Every verdict with its reason, and the evidence."""
    sources = dict.fromkeys(source for each in found.verdicts for source in each.evidence)
    evidence = sentence(f"Evidence: {'; '.join(sources)}.") if sources else ""
    return (bullets(_verdicts(found)), note(evidence))


def _problems_blocks(found: Links) -> tuple[Block, ...]:
    problems = _problems(found)
    return (bullets(problems),) if problems else (note("Every row was used."),)


def _brief(found: Links, _: int) -> tuple[Block, ...]:
    verdicts = list(_verdicts(found))
    return (
        bullets(verdicts[:_MOST_VERDICTS]),
        *_fits_blocks(found.fits, caption="", most=_MOST_ROWS),
        bullets(_problems(found)[:2]),
        more_note((len(verdicts) - _MOST_VERDICTS, "verdict"), "every range of sizes", "evidence"),
    )


COLLECTIVES: Final[Page[Links]] = Page(
    title=_about,
    about=_about,
    headline=_headline,
    sections=(
        Section("fits", "Latency and rate", lambda found: _fits_blocks(found.fits), needs=("fits",)),
        Section("verdicts", "Compared with expected values", _verdicts_blocks, needs=("verdicts",)),
        Section("problems", "What was not used", _problems_blocks),
    ),
    closing=lambda _: (
        "Expected values come from the performance model and published measurements of similar machines.",
    ),
    brief=_brief,
)


# --- document


def collectives_fields(found: Links) -> dict[str, Any]:
    """The document of `collectives`."""
    return {
        "level": LEVEL,
        "num_rows": found.reading.num_rows,
        "fits": [significant(_fit(each)) for each in found.fits],
        "verdicts": [
            significant({**_run_fields(each.run), **fields_of(each, run=None)}) for each in found.verdicts
        ],
        "unfitted": [{**_run_fields(run), "reason": reason} for run, reason in found.unfitted],
        "rejected": found.reading.rejected.rows(),
        "notes": list(found.reading.notes),
    }


def _run_fields(run: CollectiveRun) -> dict[str, Any]:
    return fields_of(run, number="run", timings=None, num_copies=None, link=None)


_LATENCY_NAMES: Final = {"value": "latency_s", "low": "latency_low_s", "high": "latency_high_s"}


def _fit(fit: CollectiveFit) -> dict[str, Any]:
    ends = ("value", "low", "high")
    return {
        **_run_fields(fit.run),
        **picked(fit.curve.latency_s, *ends, **_LATENCY_NAMES),
        **picked(fit.curve.byte_per_s, *ends, value="byte_per_s"),
        "bus_byte_per_s": fit.bus_byte_per_s,
        **picked(fit.curve, "num_points", "log_sd", "regimes"),
        "cpu_fractions": [
            {"payload_bytes": size, "cpu_fraction": share} for size, share in fit.cpu_fractions
        ],
    }
