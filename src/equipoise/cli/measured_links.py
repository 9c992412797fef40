"""What `equipoise collectives` says: latency and rate by operation and size, and whether they are normal."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from equipoise.advice.links.collectives import LEVEL, Fit, Links, Verdict
from equipoise.bench.collectives.timing import Run, bus_fraction
from equipoise.cli.output import counted, paragraph, table_text
from equipoise.stats import Interval
from equipoise.units import GIB, MIB, MICROSECOND_S, SI_PREFIXES, format_percent, significant

_GB = SI_PREFIXES["G"]
_KIB = 1024
_EXPONENT_FROM = 999.5


def fields(found: Links) -> dict[str, Any]:
    """The fields of the document."""
    return {
        "level": LEVEL,
        "num_rows": found.reading.num_rows,
        "fits": [significant(_fit(each)) for each in found.fits],
        "verdicts": [significant(_verdict(each)) for each in found.verdicts],
        "unfitted": [{**_named(run), "reason": reason} for run, reason in found.unfitted],
        "rejected": found.reading.rejected.rows(),
        "notes": list(found.reading.notes),
    }


def _named(run: Run) -> dict[str, Any]:
    """What identifies a run."""
    return {
        "operation": run.operation,
        "num_ranks": run.num_ranks,
        "num_nodes": run.num_nodes,
        "device": run.device,
        "backend": run.backend,
        "file": run.file,
        "run": run.number,
    }


def _fit(fit: Fit) -> dict[str, Any]:
    latency, rate = fit.curve.latency_s, fit.curve.byte_per_s
    return {
        **_named(fit.run),
        "latency_s": latency and latency.value,
        "latency_low_s": latency and latency.low,
        "latency_high_s": latency and latency.high,
        "byte_per_s": rate and rate.value,
        "low": rate and rate.low,
        "high": rate and rate.high,
        "bus_byte_per_s": fit.bus_byte_per_s,
        "num_points": fit.curve.num_points,
        "log_sd": fit.curve.log_sd,
        "regimes": [asdict(each) for each in fit.curve.regimes],
        "cpu_fractions": [
            {"payload_bytes": size, "cpu_fraction": share} for size, share in fit.cpu_fractions
        ],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    plain: Mapping[str, Any] = {
        name: getattr(verdict, name)
        for name in ("quantity", "payload_bytes", "measured", "low", "expected", "high", "verdict", "because")
    }
    return {
        **_named(verdict.run),
        **plain,
        "link": verdict.link,
        "link_byte_per_s": verdict.link_byte_per_s,
        "evidence": list(verdict.evidence),
    }


def text(found: Links) -> str:
    """The same for people."""
    parts = [_head(found)]
    if found.fits:
        parts.append(_fits(found.fits))
    parts.extend(_verdicts(found.verdicts))
    parts.extend(paragraph(f"{_title(run)}: no fit: {reason}.") for run, reason in found.unfitted)
    if found.reading.rejected.kinds:
        parts.append(_rejected(found))
    parts.extend(paragraph(f"Note: {note}.") for note in found.reading.notes)
    return "\n".join(parts)


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """One paragraph each; those that nothing is known of together, by the reason."""
    silent = [each for each in verdicts if each.verdict == "unknown"]
    yield from (paragraph(_said(each)) for each in verdicts if each.verdict != "unknown")
    for reason in dict.fromkeys(each.because for each in silent):
        alike = [each for each in silent if each.because == reason]
        if len(alike) == 1:
            yield paragraph(_said(alike[0]))
        else:
            names = ", ".join(dict.fromkeys(each.run.operation for each in alike))
            yield paragraph(f"No verdict on {len(alike)} figures ({names}): {reason}.")


def _head(found: Links) -> str:
    rows = counted(found.reading.num_rows, "row", "rows")
    runs = counted(len(found.reading.runs), "run", "runs")
    refused = sum(each.count for each in found.reading.rejected.kinds.values())
    rest = f"; {refused} not used" if refused else ""
    return paragraph(f"{rows} of {runs} read{rest}.")


def _fits(fits: Sequence[Fit]) -> str:
    """One line a fit, and under it one a range of sizes."""
    unit, name = _rate_unit(fits)
    head = ["operation", "ranks", "sizes", "latency us", f"payload {name}", "bus"]
    rows = []
    for fit in fits:
        run, curve = fit.run, fit.curve
        span = f"{_size(curve.regimes[0].from_bytes)}..{_size(curve.regimes[-1].to_bytes)}"
        bus = "-" if fit.bus_byte_per_s is None else _short(fit.bus_byte_per_s / unit)
        latency, rate = _ranged(curve.latency_s, MICROSECOND_S), _ranged(curve.byte_per_s, unit)
        rows.append([run.operation, str(run.num_ranks), span, latency, rate, bus])
        if len(curve.regimes) > 1:
            rows.extend(_regimes(fit, unit))
    legend = (
        "Time is latency + payload / rate in each range of sizes; in brackets where "
        f"{format_percent(LEVEL)} of the probability lies. A dash: the sizes measured do not tell. "
        "Bus: as busbw counts."
    )
    return table_text(head, rows, align="<><>>>") + paragraph(legend)


def _rate_unit(fits: Sequence[Fit]) -> tuple[float, str]:
    """The unit of rates in which the fastest has digits before its point, and its name."""
    fastest = max((fit.curve.byte_per_s.value for fit in fits if fit.curve.byte_per_s), default=_GB)
    return (_GB, "GB/s") if fastest >= _GB else (SI_PREFIXES["M"], "MB/s")


def _regimes(fit: Fit, unit: float) -> list[list[str]]:
    factor = bus_fraction(fit.run.operation, fit.run.num_ranks)
    return [
        [
            "",
            "",
            f"  {_size(each.from_bytes)}..{_size(each.to_bytes)}",
            _short(each.latency_s / MICROSECOND_S),
            "-" if math.isinf(each.byte_per_s) else _short(each.byte_per_s / unit),
            "-" if math.isinf(each.byte_per_s) else _short(each.byte_per_s * factor / unit),
        ]
        for each in fit.curve.regimes
    ]


def _ranged(interval: Interval | None, unit: float) -> str:
    if interval is None:
        return "-"
    high = "?" if math.isinf(interval.high) else _short(interval.high / unit)
    return f"{_short(interval.value / unit)} ({_short(interval.low / unit)}-{high})"


def _short(value: float) -> str:
    """Three digits, and more rather than an exponent.

    >>> _short(0.11684), _short(35.44), _short(4571.0)
    ('0.117', '35.4', '4571')
    """
    return f"{value:.3g}" if value < _EXPONENT_FROM else f"{value:.0f}"


def _title(run: Run) -> str:
    nodes = "" if run.num_nodes in {None, 1} else f" on {run.num_nodes} nodes"
    return f"{run.operation} over {counted(run.num_ranks, 'rank', 'ranks')}{nodes}"


def _said(verdict: Verdict) -> str:
    """A verdict in one or two sentences."""
    rate = verdict.quantity == "bus_byte_per_s"
    fast = (_GB, "GB/s") if verdict.measured >= _GB else (SI_PREFIXES["M"], "MB/s")
    unit, name = fast if rate else (MICROSECOND_S, "us")
    what = f"{verdict.measured / unit:.4g} {name}" + (" of bus" if rate else "")
    found = f"{_title(verdict.run)}: {verdict.verdict}: {what} at {_size(verdict.payload_bytes)}"
    if verdict.low is not None and verdict.high is not None:
        found += f", {verdict.low / unit:.3g} to {verdict.high / unit:.3g} expected"
    return f"{found}: {verdict.because}" + ("" if verdict.because.endswith("?") else ".")


def _size(num_bytes: int) -> str:
    """A size as nccl-tests is asked for it: powers of 1024.

    >>> _size(8), _size(1536), _size(8 * 2**30)
    ('8 B', '1.5 KiB', '8 GiB')
    """
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (_KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.3g} {name}"
    return f"{num_bytes} B"


def _rejected(found: Links) -> str:
    lines = [
        f"{each.count} not used: {each.first.detail} (first: {each.first.where})."
        for _, each in sorted(found.reading.rejected.kinds.items())
    ]
    return "".join(paragraph(line) for line in lines)
