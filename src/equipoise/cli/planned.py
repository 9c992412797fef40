"""What `equipoise plan` says: the recommended strategy, its seconds and bytes, alternatives, where more stop paying."""

from collections.abc import Iterator
from dataclasses import asdict
from textwrap import fill
from typing import Any

from equipoise.advice.planned import Option, Plan
from equipoise.cli.output import counted, printable, table_text, width_columns
from equipoise.scaling.equilibrium import Equilibrium, words
from equipoise.units import format_count, format_duration, format_percent, format_si, significant

_LEAST_SHARE = 0.005
_MOST_REJECTED = 4
_TONNE_KG = 1000.0


def fields(found: Plan) -> dict[str, Any]:
    """The fields of the document."""
    whole = {
        "workload": found.workload.slug,
        "cluster": _cluster(found),
        "objective": found.question.objective,
        "recommended": None if found.recommended is None else _option(found.recommended),
        "alternatives": [_option(each) for each in found.alternatives],
        "pareto": [_option(each) for each in found.pareto],
        "sizes": [_option(each) for each in found.by_size],
        "equilibria": [_equilibrium(each) for each in found.points],
        "answer": None if found.answer is None else found.answer.kind,
        "rejected": [asdict(each) for each in found.rejected],
        "remedy": found.remedy,
        "evidence": [asdict(each) for each in found.length.evidence],
        "record": asdict(found.basis),
        "length": {
            "words": found.length.words,
            "whole": found.length.is_whole,
            "missing": list(found.length.missing),
        },
        "rates": asdict(found.rates),
        "notes": list(found.notes),
        "num_considered": found.num_considered,
        "num_fitting": found.num_fitting,
        "search_s": found.search_s,
    }
    return {name: significant(value) for name, value in whole.items()}


def _cluster(found: Plan) -> dict[str, Any]:
    nodes = found.cluster
    return {
        "name": nodes.name,
        "accelerator": nodes.accelerator.slug,
        "node_size": nodes.node_size,
        "topology": nodes.topology,
        "intra_byte_per_s": nodes.intra.byte_per_s,
        "inter_byte_per_s": nodes.inter.byte_per_s,
        "memory_bytes": nodes.accelerator.memory_bytes,
    }


def _option(each: Option) -> dict[str, Any]:
    return {
        "accelerator": each.accelerator,
        "num_accelerators": each.num_accelerators,
        "strategy": each.strategy.text(),
        "time_s": asdict(each.time),
        "step_s": each.step_s,
        "usd": each.bill.usd,
        "energy_j": each.bill.energy_j,
        "carbon_kg": each.bill.carbon_kg,
        "accelerator_hours": each.bill.accelerator_hours,
        "memory_bytes": each.memory_bytes,
        "memory": dict(each.memory),
        "seconds": dict(each.seconds),
        "samples": each.samples,
        "flop_share": each.flop_share,
    }


def _equilibrium(each: Equilibrium) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "num_accelerators": each.num_accelerators,
        "low": each.low,
        "high": each.high,
        "level": each.level,
        "bound": each.bound,
        "censored": each.censored,
        "efficiency": each.efficiency,
        "time_s": each.time_s,
        "accelerator_hours": each.accelerator_hours,
        "next_doubling": asdict(each.next_doubling),
        "words": words(each),
    }


def text(found: Plan) -> str:
    """The same for people."""
    parts = (
        _title(found),
        _recommended(found),
        _alternatives(found),
        _sizes(found),
        _points(found),
        _ground(found),
    )
    return "\n".join(part for part in parts if part)


def _paragraph(sentence: str, indent: str = "  ") -> str:
    return f"{fill(printable(sentence), width_columns(), subsequent_indent=indent)}\n"


def _title(found: Plan) -> str:
    nodes, question = found.cluster, found.question
    sizes = format_count(question.most)
    if question.fewest < question.most:
        sizes = f"{format_count(question.fewest)} to {sizes}"
    chip = nodes.accelerator
    memory = "" if chip.memory_bytes is None else f"{format_si(float(chip.memory_bytes), 'B')} each, "
    return _paragraph(
        f"{found.workload.title} on {sizes} x {chip.title} ({memory}{nodes.node_size} to a node): "
        f"to {found.length.words}"
    )


def _recommended(found: Plan) -> str:
    best = found.recommended
    if best is None:
        return _refused(found)
    bill = best.bill
    amounts = [
        f"{format_si(bill.accelerator_hours, '').strip()} accelerator-hours",
        "" if bill.usd is None else f"{format_si(bill.usd, '').strip()} USD",
        "" if bill.energy_j is None else format_si(bill.energy_j, "J"),
        "" if bill.carbon_kg is None else f"{_mass(bill.carbon_kg)} CO2",
    ]
    share = "" if best.flop_share is None else f", {format_percent(best.flop_share)} of peak FLOP/s"
    lines = [
        f"Recommended: {counted(best.num_accelerators, 'accelerator', 'accelerators')}\n",
        _paragraph(f"  strategy  {best.strategy.text()}", " " * 12),
        _paragraph(f"  time      {_time(best)}", " " * 12),
        _paragraph(
            f"  a step    {format_duration(best.step_s)} ({_range(best)}) for "
            f"{format_count(best.strategy.global_batch_samples)} samples{share}",
            " " * 12,
        ),
        _paragraph(f"  costs     {', '.join(each for each in amounts if each)}", " " * 12),
        _paragraph(f"  memory    {_memory(found, best)}", " " * 12),
        _paragraph(f"  seconds   {_seconds(best)}", " " * 12),
    ]
    return "".join(lines)


def _time(option: Option) -> str:
    time = option.time
    steps = option.samples / option.strategy.global_batch_samples
    return (
        f"{format_duration(time.value)} ({format_duration(time.low)} to {format_duration(time.high)}, "
        f"{format_percent(time.level)}): {format_si(option.samples, '').strip()} samples in "
        f"{format_count(max(1, round(steps)))} steps"
    )


def _range(option: Option) -> str:
    low = option.step_s * option.time.low / option.time.value
    high = option.step_s * option.time.high / option.time.value
    return f"{format_duration(low)} to {format_duration(high)}"


def _mass(mass_kg: float) -> str:
    return f"{mass_kg / _TONNE_KG:.3g} t" if mass_kg >= _TONNE_KG else f"{mass_kg:.3g} kg"


def _memory(found: Plan, option: Option) -> str:
    whole = found.cluster.accelerator.memory_bytes
    kinds = sorted(
        ((kind, size) for kind, size in option.memory.items() if kind != "reserved"),
        key=lambda pair: -pair[1],
    )
    parts = [
        f"{kind} {format_si(size, 'B')}" for kind, size in kinds if size > _LEAST_SHARE * option.memory_bytes
    ]
    of = "" if whole is None else f" of {format_si(float(whole), 'B')}"
    return f"{format_si(option.memory_bytes, 'B')}{of} reserved: {', '.join(parts)}"


def _seconds(option: Option) -> str:
    """Causes of a step's time, the largest first; what is below half a percent is summed."""
    causes = sorted(option.seconds.items(), key=lambda pair: -pair[1])
    shown = [(cause, share) for cause, spent in causes if (share := spent / option.step_s) >= _LEAST_SHARE]
    parts = [f"{cause} {format_percent(round(share, 3))}" for cause, share in shown]
    return ", ".join(parts)


def _refused(found: Plan) -> str:
    """Why there is no recommendation, and what would help."""
    lines = ["No strategy does.\n"]
    if found.remedy:
        lines.append(_paragraph(f"It {found.remedy}."))
    for each in found.rejected[:_MOST_REJECTED]:
        amounts = ""
        if each.needed is not None and each.available is not None:
            amounts = f": at least {_amount(each.reason, each.needed)} needed, {_amount(each.reason, each.available)} given"
        lines.append(
            _paragraph(
                f"- {each.reason.rpartition('_')[0] or each.reason}{amounts} ({format_count(each.count)})"
            )
        )
    return "".join(lines)


def _amount(reason: str, value: float) -> str:
    if reason.endswith("_bytes"):
        return format_si(value, "B")
    return format_duration(value) if reason.endswith("_s") else f"{format_si(value, '').strip()} USD"


def _alternatives(found: Plan) -> str:
    if found.recommended is None or not found.alternatives:
        return ""
    best = found.recommended
    rows = [_row(each, best) for each in (best, *found.alternatives)]
    return "Other layouts on as many accelerators:\n" + table_text(
        ("time", "", "memory", "strategy"), rows, align=">>><"
    )


def _row(each: Option, best: Option) -> tuple[str, ...]:
    longer = each.time.value / best.time.value - 1
    return (
        format_duration(each.time.value),
        "" if each is best else f"+{format_percent(round(longer, 3))}",
        format_si(each.memory_bytes, "B"),
        each.strategy.text(),
    )


def _sizes(found: Plan) -> str:
    """The best at each size, with what a doubling costs."""
    if len(found.by_size) < 2:  # noqa: PLR2004 - one size is the recommendation itself
        return ""
    front = {each.num_accelerators for each in found.pareto}
    rows = [
        (
            format_count(each.num_accelerators),
            format_duration(each.time.value),
            format_count(each.strategy.global_batch_samples),
            "-" if each.flop_share is None else format_percent(round(each.flop_share, 3)),
            "-" if each.bill.usd is None else format_si(each.bill.usd, "").strip(),
            "-" if each.bill.energy_j is None else format_si(each.bill.energy_j, "J"),
            "best trade-off" if each.num_accelerators in front else "",
        )
        for each in found.by_size
    ]
    head = ("N", "time", "batch", "of peak", "USD", "energy", "")
    return "The best at each size:\n" + table_text(head, rows, align=">>>>>><")


def _points(found: Plan) -> str:
    if found.answer is None:
        return ""
    ordered = sorted(found.points, key=lambda each: each is not found.answer)
    lines = [_paragraph(f"- {_sentence(words(each))}") for each in ordered]
    return "Where more accelerators stop paying, the first reason first:\n" + "".join(lines)


def _sentence(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _ground(found: Plan) -> str:
    """What the answer rests on."""
    return "".join(_paragraph(line) for line in _ground_lines(found))


def _ground_lines(found: Plan) -> Iterator[str]:
    basis = found.basis
    yield f"Calibration: {basis.name} ({basis.words})."
    if basis.median_abs_error is not None:
        yield (
            f"Record: {basis.num_held_out} times held out, off by {format_percent(basis.median_abs_error)} (median)."
        )
    yield (
        f"Considered {format_count(found.num_considered)} strategies, of which {format_count(found.num_fitting)} fit, "
        f"in {found.search_s:.2g} s."
    )
    yield from (f"Note: {note}" for note in found.notes)
