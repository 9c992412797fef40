"""What `equipoise advise` says to people: the answer first, then why, what else, what would make it surer."""

from collections.abc import Iterator, Sequence

from equipoise.advice.answer.advice import Advice, Choice, Standing
from equipoise.advice.answer.weighed import chance_words
from equipoise.cli.output import paragraph, printable, table_text
from equipoise.cli.priced import ownership_text, rented_text
from equipoise.scaling.equilibrium import words as equilibrium_words
from equipoise.stats import Interval
from equipoise.units import format_count, format_duration, format_percent, format_si, format_step

_TONNE_KG = 1000.0
_MOST_SIZES = 12
_MOST_COMPARED = 5
_MOST_REFS = 2
_LABEL = 10


def text(found: Advice) -> str:
    """The whole answer."""
    parts = (
        _title(found),
        _answer(found),
        _stops(found),
        _sizes(found),
        rented_text(found.risks),
        "" if found.ownership is None else ownership_text(found.ownership),
        _listed("Why", _reasons(found)),
        _listed("What comes closest", _alternatives(found)),
        _listed("To be surer", _measurements(found)),
        _listed("How right such answers were", (each.words for each in found.records)),
        _run(found),
        _listed("Notes", found.notes),
    )
    return "\n".join(part for part in parts if part)


def _listed(title: str, sentences: Iterator[str] | Sequence[str]) -> str:
    lines = [paragraph(f"- {each}") for each in sentences]
    return f"{title}:\n{''.join(lines)}" if lines else ""


def _title(found: Advice) -> str:
    names = " or ".join(each.title for each in (found.standing, *found.others))
    return paragraph(f"{found.title} on {names}: to {found.standing.length.words}")


def _answer(found: Advice) -> str:
    """What to take and what it takes; or what stands in the way."""
    best = found.recommended
    if best is None:
        return paragraph(f"No size does. {found.standing.obstacle}")
    lines = [*_amounts(found.standing, best)]
    told = (paragraph(f"  {name:<{_LABEL}}{words}", _LABEL + 2) for name, words in lines)
    return f"{_take(found.standing, best)}{''.join(told)}"


def _take(standing: Standing, best: Choice) -> str:
    nodes = ""
    if standing.cluster is not None and best.num_accelerators > standing.cluster.node_size:
        size = standing.cluster.node_size
        nodes = f" ({format_count(-(-best.num_accelerators // size))} nodes of {format_count(size)})"
    return paragraph(f"Take {format_count(best.num_accelerators)} x {standing.title}{nodes}")


def _amounts(standing: Standing, best: Choice) -> Iterator[tuple[str, str]]:
    bill, option = best.bill, best.option
    yield "time", f"{_time(best.time)}, {format_percent(best.time.level)} range"
    if bill.money is not None:
        yield "money", f"{_amount(bill.money, ' USD')}; {format_si(bill.accelerator_hours)} accelerator-hours"
    else:
        yield "hours", f"{_amount(bill.hours, ' accelerator-hours')}; no price is known: give --price"
    if bill.energy is not None:
        yield "energy", _amount(bill.energy, "J")
    if bill.electricity is not None:
        yield "power", f"{_amount(bill.electricity, ' USD')} of electricity"
    if bill.carbon is not None:
        yield "carbon", _mass(bill.carbon)
    if best.chance_in_time is not None:
        yield "deadline", f"kept in {chance_words(best.chance_in_time)} of such cases"
    if best.run is not None:
        run = best.run
        yield (
            "measured",
            (
                f"{run.strategy or 'one device'} at batch {format_count(run.global_batch_samples)}: "
                f"{format_si(run.samples_per_s)} samples/s"
            ),
        )
    if option is None:
        if best.run is None:
            why = "the notes say why" if standing.plan is None else "the model has none that fits"
            yield "strategy", f"not known: {why}"
        return
    share = (
        "" if option.flop_share is None else f", {format_percent(float(f'{option.flop_share:.2g}'))} of peak"
    )
    yield "strategy", option.strategy.text()
    yield (
        "batch",
        (
            f"{format_count(option.strategy.global_batch_samples)} samples a step; a step takes "
            f"{format_step(option.step_s)} by the model{share}"
        ),
    )
    held = None if standing.cluster is None else standing.cluster.accelerator.memory_bytes
    of = "" if held is None else f" of {format_si(float(held), 'B')}"
    yield "memory", f"{format_si(option.memory_bytes, 'B')}{of} an accelerator"


def _time(time: Interval) -> str:
    return f"{format_duration(time.value)} ({format_duration(time.low)} to {format_duration(time.high)})"


def _amount(amount: Interval, unit: str) -> str:
    """A value with its range, in one unit where it is no SI one."""
    if unit == "J":
        low, high = format_si(amount.low, "J"), format_si(amount.high, "J")
        return f"{format_si(amount.value, 'J')} ({low} to {high})"
    return f"{format_si(amount.value)}{unit} ({format_si(amount.low)} to {format_si(amount.high)})"


def _mass(amount: Interval) -> str:
    factor, unit = (_TONNE_KG, "t") if amount.value >= _TONNE_KG else (1.0, "kg")
    if amount.value < 1.0:
        factor, unit = 1 / _TONNE_KG, "g"
    rounded = (float(f"{each / factor:.3g}") for each in (amount.low, amount.value, amount.high))
    low, value, high = (f"{each:,g}" for each in rounded)
    return f"{value} {unit} CO2 ({low} to {high})"


def _stops(found: Advice) -> str:
    """Where more stop paying, and what the next doubling would bring."""
    lines = []
    if found.standing.answer is not None:
        told = equilibrium_words(found.standing.answer).partition(";")[0]
        lines.append(paragraph(f"Equilibrium: {told}."))
    step = found.next_doubling
    if step is not None:
        share = ""
        if abs(step.gain_fraction) <= 1.0:
            share = f" ({format_percent(abs(round(step.gain_fraction, 2)))})"
        gain = "saves" if step.gain_s >= 0.0 else "takes longer:"
        money = "" if step.usd is None else f", for {format_si(step.usd)} USD more"
        if step.usd is not None and step.usd < 0:
            money = f", for {format_si(-step.usd)} USD less"
        worth = (
            ""
            if step.hour_usd is None or step.hour_usd <= 0
            else f": worth it where an hour is worth {format_si(step.hour_usd)} USD"
        )
        lines.append(
            paragraph(
                f"The next doubling, to {format_count(step.num_accelerators)}: "
                f"{format_duration(step.time.value)}; {gain} {format_duration(abs(step.gain_s))}{share}, "
                f"{step.accelerator_hours_factor:.2f}x the accelerator-hours{money}{worth}."
            )
        )
    return "".join(lines)


def _sizes(found: Advice) -> str:
    """Every size, with what each kind of evidence says; of several machines those about what to take."""
    if found.others:
        return _compared(found)
    best, standing = found.recommended, found.standing
    shown = _thinned(standing.everyone, best, _MOST_SIZES)
    if len(shown) == 1:
        return ""
    rows = [(*_row(each), _mark(found, standing, each)) for each in shown]
    head = ("N", "time", "90 % range", "USD", "published", "yours", "model", "")
    return table_text(head, rows, align=">>>>>>><")


def _compared(found: Advice) -> str:
    rows = []
    for standing in (found.standing, *found.others):
        for each in _thinned(standing.everyone, standing.recommended, _MOST_COMPARED):
            row = (standing.accelerator, *_row(each)[:4])
            rows.append((*row, _mark(found, standing, each)))
    head = ("accelerator", "N", "time", "90 % range", "USD", "")
    return table_text(head, rows, align="<>>>><")


def _mark(found: Advice, standing: Standing, each: Choice) -> str:
    if each is found.recommended:
        return "take"
    if each is standing.recommended:
        return "best of it"
    return "beyond" if each.num_accelerators in standing.beyond else ""


def _thinned(choices: Sequence[Choice], best: Choice | None, most: int) -> list[Choice]:
    """The choices, at most so many, the one to take and its neighbours among them."""
    if len(choices) <= most:
        return list(choices)
    at = next((index for index, each in enumerate(choices) if each is best), len(choices) - 1)
    first = max(0, min(at - most // 2, len(choices) - most))
    return list(choices[first : first + most])


def _row(each: Choice) -> tuple[str, ...]:
    said = dict.fromkeys(("published", "measured", "modelled"), "-")
    for one in each.evidence:
        said[one.kind] = format_duration(one.time.value)
    return (
        format_count(each.num_accelerators),
        format_duration(each.time.value),
        _range(each.time),
        "-" if each.bill.usd is None else format_si(each.bill.usd),
        *said.values(),
    )


def _range(time: Interval) -> str:
    low, high = format_duration(time.low), format_duration(time.high)
    if low.split()[-1] == high.split()[-1]:
        low = low.split()[0]
    return f"{low}-{high}"


def _reasons(found: Advice) -> Iterator[str]:
    for each in found.reasons:
        refs = list(dict.fromkeys(source.ref for source in each.sources if source.time_s is not None))
        more = f" and {len(refs) - _MOST_REFS} more" if len(refs) > _MOST_REFS else ""
        told = f" [{', '.join(refs[:_MOST_REFS])}{more}]" if refs else ""
        yield f"{each.words}{told}"


def _alternatives(found: Advice) -> Iterator[str]:
    return (f"{each.words}; {each.wins_when}." for each in found.alternatives)


def _measurements(found: Advice) -> Iterator[str]:
    for each in found.to_measure:
        command = "" if each.command is None else f" ({each.command})"
        yield f"{each.words.rstrip('.')}{command}."


def _run(found: Advice) -> str:
    """The command; the rest is too long for a terminal."""
    if not found.snippets:
        return ""
    first = found.snippets[0]
    lines = "".join(f"  {printable(line)}\n" for line in first.code.splitlines())
    rest = [each.title for each in found.snippets[1:]]
    more = f"Code and settings are in --html and --json: {', '.join(rest)}.\n" if rest else ""
    return f"Run it:\n{lines}{paragraph(more.strip()) if more else ''}"
