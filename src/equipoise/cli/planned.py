"""What `equipoise plan` says to people: the strategy to take, others, where more stop paying."""

from collections.abc import Callable, Iterator

from equipoise.advice.plans.linked_words import linked_words
from equipoise.advice.plans.plan_record import PlanRecord
from equipoise.advice.plans.planned import Comparison, Option, Plan, Rejection
from equipoise.advice.plans.sizing import kinds_held
from equipoise.cli.output import counted, paragraph, table_text
from equipoise.scaling.equilibrium import Equilibrium, doubling_words, place_words
from equipoise.stats import Interval
from equipoise.units import format_count, format_duration, format_percent, format_si, format_step

# Shares of a whole below this are left out of its list for people.
_LEAST_SHARE = 0.005
_MOST_REJECTED = 4
_TONNE_KG = 1000.0
_ALL_BUT_NO_LOSS = 0.99


def text(found: Comparison) -> str:
    """The same for people."""
    plan = found.plan
    parts = (
        _compared(found),
        _title(plan),
        _recommended(plan),
        _alternatives(plan),
        _sizes(plan),
        _points(plan),
        "".join(paragraph(line) for line in _ground(plan)),
    )
    return "\n".join(part for part in parts if part)


def _compared(found: Comparison) -> str:
    """Every size asked of every accelerator, one line each, the one to take marked."""
    if len(found.plans) == 1:
        return ""
    taken = found.plan.recommended
    rows = []
    for plan in found.plans:
        asked = [each for each in plan.by_size if plan.question.asks(each.num_accelerators)]
        rows += [(each.accelerator, *_figures(each), "take this" if each is taken else "") for each in asked]
        if not asked:
            rows.append(
                (plan.cluster.accelerator.slug, format_count(plan.question.most), *["-"] * 5, "does not fit")
            )
    head = ("accelerator", "N", "time", "batch", "of peak", "USD", "energy", "")
    return f"{found.plan.workload.title}: to {found.plan.length.words}\n" + table_text(
        head, rows, align="<>>>>>><"
    )


def _figures(each: Option) -> tuple[str, ...]:
    return (
        format_count(each.num_accelerators),
        format_duration(each.time.value),
        format_count(each.strategy.global_batch_samples),
        "-" if each.flop_share is None else format_percent(round(each.flop_share, 3)),
        "-" if each.bill.usd is None else format_si(each.bill.usd),
        "-" if each.bill.energy_j is None else format_si(each.bill.energy_j, "J"),
    )


def _title(found: Plan) -> str:
    nodes, question = found.cluster, found.question
    sizes = format_count(question.most)
    if question.sizes:
        sizes = ", ".join(map(format_count, question.sizes))
    elif question.fewest < question.most:
        sizes = f"{format_count(question.fewest)} to {sizes}"
    chip = nodes.accelerator
    memory = "" if chip.memory_bytes is None else f"{format_si(float(chip.memory_bytes), 'B')}, "
    return paragraph(
        f"{found.workload.title} on {sizes} x {chip.title} ({memory}{nodes.node_size} to a node): "
        f"to {found.length.words}"
    )


def _recommended(found: Plan) -> str:
    best = found.recommended
    if best is None:
        return _refused(found)
    batch = best.strategy.global_batch_samples
    share = "" if best.flop_share is None else f", {format_percent(round(best.flop_share, 3))} of peak FLOP/s"
    lines = {
        "strategy": best.strategy.text(),
        "time": _time(best),
        "a step": f"{format_step(best.step_s)} for {format_count(batch)} samples{share}",
        "costs": _costs(best),
        "memory": _memory(found, best),
        "a step is": _seconds(best),
    }
    told = (paragraph(f"  {name:<10}{words}", 12) for name, words in lines.items())
    return f"Recommended: {counted(best.num_accelerators, 'accelerator', 'accelerators')}\n{''.join(told)}"


def _time(option: Option) -> str:
    time = option.time
    steps = max(1, round(option.samples / option.strategy.global_batch_samples))
    failures = ""
    if option.goodput < _ALL_BUT_NO_LOSS:
        failures = f"; {format_percent(round(1 - option.goodput, 3))} of it lost to failures"
    return (
        f"{format_duration(time.value)} ({format_duration(time.low)} to {format_duration(time.high)}, "
        f"{format_percent(time.level)}): {format_si(option.samples)} samples in {format_count(steps)} "
        f"{'step' if steps == 1 else 'steps'}{failures}"
    )


def _costs(option: Option) -> str:
    bill = option.bill
    amounts = [f"{format_si(bill.accelerator_hours)} accelerator-hours"]
    if bill.money is not None:
        amounts.append(f"{format_si(bill.money.value)} USD{_between(bill.money, format_si)}")
    if bill.energy is not None:
        amounts.append(f"{format_si(bill.energy.value, 'J')}{_between(bill.energy, _joules)}")
    if bill.electricity is not None:
        told = bill.electricity
        amounts.append(f"{format_si(told.value)} USD of electricity{_between(told, format_si)}")
    if bill.carbon is not None:
        amounts.append(f"{_mass(bill.carbon.value)} CO2{_between(bill.carbon, _mass)}")
    return ", ".join(amounts)


def _between(amount: Interval, form: Callable[[float], str]) -> str:
    """Both ends of an amount; nothing where it is exact."""
    if amount.low == amount.high:
        return ""
    return f" ({form(amount.low)} to {form(amount.high)})"


def _joules(energy_j: float) -> str:
    return format_si(energy_j, "J")


def _mass(mass_kg: float) -> str:
    return f"{mass_kg / _TONNE_KG:.3g} t" if mass_kg >= _TONNE_KG else f"{mass_kg:.3g} kg"


def _memory(found: Plan, option: Option) -> str:
    """Memory by kind, the largest first."""
    whole = found.cluster.accelerator.memory_bytes
    kinds = kinds_held(option)
    parts = [
        f"{kind} {format_si(size, 'B')}"
        for kind, size in sorted(kinds.items(), key=lambda pair: -pair[1])
        if size > _LEAST_SHARE * option.memory_bytes
    ]
    of = "" if whole is None else f" of {format_si(float(whole), 'B')}"
    return f"{format_si(option.memory_bytes, 'B')}{of}: {', '.join(parts)}"


def _seconds(option: Option) -> str:
    """Causes of a step's time, the largest first."""
    causes = sorted(option.seconds.items(), key=lambda pair: -pair[1])
    shares = [(cause, spent / option.step_s) for cause, spent in causes]
    return ", ".join(
        f"{cause} {format_percent(round(share, 3))}" for cause, share in shares if share >= _LEAST_SHARE
    )


def _refused(found: Plan) -> str:
    """Why there is no recommendation, and what would help."""
    lines = ["No strategy does.\n"]
    if found.remedy:
        lines.append(paragraph(f"It {found.remedy}."))
    lines += [paragraph(f"- {_rejection(each)}") for each in found.rejected[:_MOST_REJECTED]]
    return "".join(lines)


def _rejection(each: Rejection) -> str:
    if each.needed is None or each.available is None:
        return f"{each.reason} ({format_count(each.count)})"
    needed, available = _amount(each.reason, each.needed), _amount(each.reason, each.available)
    name = each.reason.rpartition("_")[0]
    return f"{name}: at least {needed} needed, {available} there ({format_count(each.count)})"


def _amount(reason: str, value: float) -> str:
    if reason.endswith("_bytes"):
        return format_si(value, "B")
    return format_duration(value) if reason.endswith("_s") else f"{format_si(value)} USD"


def _alternatives(found: Plan) -> str:
    if found.recommended is None or not found.alternatives:
        return ""
    best = found.recommended
    rows = [
        (
            format_duration(each.time.value),
            f"+{format_percent(round(each.time.value / best.time.value - 1, 3))}",
            format_si(each.memory_bytes, "B"),
            each.strategy.text(),
        )
        for each in found.alternatives
    ]
    head = ("time", "", "memory", "strategy")
    return "Other layouts on as many accelerators:\n" + table_text(head, rows, align=">>><")


def _sizes(found: Plan) -> str:
    """The best at each size."""
    if len(found.by_size) == 1 or not found.by_size:
        return ""
    front = {each.num_accelerators for each in found.pareto}
    rows = [(*_figures(each), "Pareto" if each.num_accelerators in front else "") for each in found.by_size]
    head = ("N", "time", "batch", "of peak", "USD", "energy", "")
    return "The best at each size:\n" + table_text(head, rows, align=">>>>>><")


def _points(found: Plan) -> str:
    """The equilibria, the default answer first; those that lie at one place in one line."""
    if found.answer is None:
        return ""
    alike: dict[tuple[str, int], list[Equilibrium]] = {}
    for each in sorted(found.points, key=lambda point: point is not found.answer):
        alike.setdefault((each.bound, each.num_accelerators), []).append(each)
    lines = [paragraph(f"- {_point(points)}") for points in alike.values()]
    return "Where more accelerators stop paying, the first reason first:\n" + "".join(lines)


def _point(points: list[Equilibrium]) -> str:
    names, first = ", ".join(each.kind for each in points), points[0]
    return f"{names}: {place_words(first, sizes='the sizes tried')}; {doubling_words(first, factor='.2f')}."


def _ground(found: Plan) -> Iterator[str]:
    """What the answer rests on."""
    basis = found.basis
    yield f"Calibration: {basis.name} ({basis.words})."
    if basis.median_abs_error is not None:
        off = format_percent(basis.median_abs_error)
        yield f"Record of the calibration: held out {basis.num_held_out} times, a step off by {off} (median)."
    yield _plans_record(found.record)
    if found.links is not None:
        yield from linked_words(found)
        yield from (f"Note: {note}" for note in found.links.notes)
    if found.seen is not None:
        ratio = found.seen.time_s / found.recommended.time.value if found.recommended else 1.0
        yield (
            f"Published: {found.seen.ref} took {format_duration(found.seen.time_s)} on as many, evaluation "
            f"included: {ratio:.2f} times this estimate."
        )
    yield (
        f"Considered {format_count(found.num_considered)} strategies in {found.search_s:.2g} s; "
        f"{format_count(found.num_fitting)} fit."
    )
    yield from (f"Note: {note}" for note in found.notes)


def _plans_record(record: PlanRecord) -> str:
    of = "transformers" if record.kind == "transformer" else "models that are none"
    median, most = (format_percent(round(error, 2)) for error in (record.median, record.p90))
    return (
        f"Record of plans: {record.num_trainings} published trainings of {len(record.workloads)} {of}, to "
        f"which nothing but the samples was fitted: off by {median} (median), 90 % of them by up to {most}; "
        "the range of a time is at least as wide."
    )
