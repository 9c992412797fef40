"""Why this answer: one sentence a part of it, each with what it rests on."""

from collections.abc import Iterator

from equipoise.advice.answer.advice import Choice, NextDoubling, Reason, Standing
from equipoise.advice.answer.asked import Request
from equipoise.advice.answer.evidence import Evidence, Source
from equipoise.advice.answer.like_workloads import closest_reason
from equipoise.advice.answer.own_evidence import own_evidence
from equipoise.advice.plans.planned import Option
from equipoise.scaling.equilibrium import words as equilibrium_words
from equipoise.units import format_count, format_duration, format_percent, format_si, format_step

_MOST_SOURCES = 3
_NOTICED = 1.05
# Names of witnesses that are several things.
_SEVERAL = ("published results", "your")
_OBJECTIVES = {
    "time": "the least time of the sizes that may be taken",
    "cost": "the least money of the sizes that may be taken",
    "energy": "the least energy of the sizes that may be taken",
}
_WEIGHTS = "w = s^-2 / sum s^-2, s: standard deviation of log time (Bates and Granger 1969)"
_BALANCE = "E x S at its highest (Eager, Zahorjan and Lazowska 1989), T(N) / T(2N) >= 1.5, E >= 0.5"


def reasons(request: Request, standing: Standing, doubled: NextDoubling | None) -> tuple[Reason, ...]:
    """Every reason for the recommended choice; none where there is no choice."""
    best = standing.recommended
    if best is None:
        return ()
    return (
        _size(request, standing, best, doubled),
        _time(best),
        *own_evidence(standing),
        *_learnt(standing),
        *_strategy(standing, best),
        *_batch(standing, best),
        *_money(standing, best),
        *closest_reason(standing),
    )


def _size(request: Request, standing: Standing, best: Choice, doubled: NextDoubling | None) -> Reason:
    """Why so many accelerators."""
    size = format_count(best.num_accelerators)
    number = f"{size} accelerator{'' if best.num_accelerators == 1 else 's'}"
    sources = tuple(source for each in best.evidence for source in each.sources[:_MOST_SOURCES])
    if request.objective != "balance":
        return Reason(
            words=f"{number}: {_OBJECTIVES[request.objective]}{_within(request)}.",
            sources=sources,
        )
    answer = standing.answer
    if answer is None:
        return Reason(
            words=f"{number}: the fewest that work; sizes of which times are known are too few to "
            "tell where more stop paying.",
            sources=sources,
        )
    limit = max(each.num_accelerators for each in standing.choices)
    told = _capital(equilibrium_words(answer))
    if best.num_accelerators == answer.num_accelerators:
        nearest = ""
    elif best.num_accelerators == limit and answer.num_accelerators > limit:
        nearest = f"; {size} is the most that may be taken"
    elif _within(request):
        nearest = f"; {size} is the nearest size{_within(request)}"
    else:
        nearest = f"; {size} is the nearest size that was searched"
    known = None if standing.forecast is None else standing.forecast.ground.domain.largest
    if known is not None and answer.num_accelerators > known:
        told = told.replace(", where the data end", "")
        nearest += f"; results end at {format_count(int(known))}, beyond them it is foretold"
    gain = ""
    if doubled is not None and doubled.gain_s <= 0.0:
        gain = " Twice as many would take longer."
    return Reason(words=f"{told}{nearest}.{gain}", sources=sources, formula=_BALANCE)


def _within(request: Request) -> str:
    told = []
    if request.deadline_s != float("inf"):
        told.append(f"the deadline of {format_duration(request.deadline_s)}")
    if request.budget_usd != float("inf"):
        told.append(f"the budget of {format_si(request.budget_usd)} USD")
    return f" that keeps {' and '.join(told)}" if told else ""


def _time(best: Choice) -> Reason:
    """What each witness says, and how they are joined."""
    sources = tuple(source for each in best.evidence for source in each.sources[:_MOST_SOURCES])
    counted = [each for each in best.evidence if each.weight > 0.0]
    if len(counted) == 1:
        only, others = counted[0], [each for each in best.evidence if not each.weight]
        besides = "".join(
            f" {_capital(each.name)} by itself: {format_duration(each.time.value)}." for each in others
        )
        return Reason(words=f"The time is what {_says(only)}: {only.why}.{besides}", sources=sources)
    told = ", ".join(
        f"{_says(each)} (weight {format_percent(round(each.weight, 2))})" for each in best.evidence
    )
    differ = ""
    if best.disagreement > _NOTICED:
        differ = (
            "; they differ by more than their own ranges explain, so the range was widened "
            f"{best.disagreement:.2g} times"
        )
    return Reason(words=f"The time joins what {told}{differ}.", sources=sources, formula=_WEIGHTS)


def _says(each: Evidence) -> str:
    verb = "say" if each.name.startswith(_SEVERAL) else "says"
    return f"{each.name} {verb}, {format_duration(each.time.value)}"


def _learnt(standing: Standing) -> Iterator[Reason]:
    """What the user's own steps made of the model."""
    if standing.learnt is not None:
        yield Reason(
            words=f"{_capital(standing.learnt)}.",
            formula="maximum a posteriori; docs/advice.md, your own runs",
        )


def _strategy(standing: Standing, best: Choice) -> Iterator[Reason]:
    """Why this strategy: what the search found."""
    plan, option = standing.plan, best.option
    if plan is None or option is None:
        return
    held = standing.cluster.accelerator.memory_bytes if standing.cluster else None
    memory = format_si(option.memory_bytes, "B")
    of = "" if held is None else f" of {format_si(float(held), 'B')}"
    yield Reason(
        words=(
            f"The strategy is the fastest of {format_count(plan.num_fitting)} that fit into memory, by the "
            f"model: it holds {memory}{of}; a step of {format_step(option.step_s)} is {_spent(option)}."
        ),
        sources=(Source(kind="modelled", ref=f"calibration {plan.basis.name}: {plan.basis.words}"),),
        formula="step = sum of causes; docs/models.md",
    )


def _spent(option: Option) -> str:
    causes = sorted(option.seconds.items(), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{name} {format_percent(round(spent / option.step_s, 2))}" for name, spent in causes)


def _batch(standing: Standing, best: Choice) -> Iterator[Reason]:
    """Why this global batch."""
    option, length = best.option, standing.length
    if option is None:
        return
    batch = format_count(option.strategy.global_batch_samples)
    if length.batches is None:
        return
    low, high = map(format_count, length.batches)
    yield Reason(
        words=(
            f"The global batch of {batch} weighs faster steps against more samples to the target: "
            f"{format_si(option.samples)} there, by results at {low} to {high}."
        ),
        sources=tuple(
            Source(
                kind=each.kind,
                ref=each.ref,
                share=each.weight,
                num_accelerators=each.num_accelerators,
                time_s=each.time_s,
                source_uri=each.source_uri,
                source_line=each.source_line,
            )
            for each in length.evidence[:_MOST_SOURCES]
        ),
        formula="S(B) = S_min (1 + B / B_crit) (McCandlish et al. 2018)",
    )


def _money(standing: Standing, best: Choice) -> Iterator[Reason]:
    """What money, energy and carbon are made with."""
    prices = standing.rates
    told = []
    if prices.price is not None:
        told.append(
            f"{prices.price.usd_per_accelerator_hour:.3g} USD an accelerator-hour ({prices.price.basis})"
        )
    if prices.accelerator_power_w is not None and best.bill.energy_basis == "modelled":
        system = prices.system_power
        told.append(
            f"{prices.accelerator_power_w:g} W an accelerator times {system.factor:g} for the rest of the "
            f"system ({system.basis})"
        )
        told.append(
            f"{prices.grid.kg_co2_per_kwh:.3g} kg CO2 a kWh, {prices.grid.region} ({prices.grid.basis})"
        )
    if told:
        yield Reason(words=f"Money, energy and carbon: {'; '.join(told)}.", formula="N x time x rate")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
