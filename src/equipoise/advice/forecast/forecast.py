"""How long training takes at sizes nobody ran, where more accelerators stop paying, and what it all costs.

Joins published results, a user's own measurements and prices into one answer.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from threadpoolctl import threadpool_limits

from equipoise import economics
from equipoise.advice.forecast.answer import LEVEL, Evidence, Forecast, Ground, Inquiry, Terms
from equipoise.advice.forecast.fitted import fitted_ground, sizes_of_interest
from equipoise.advice.forecast.published import POOLED, Results, published_ground, results_of, workload_in
from equipoise.economics import Rates
from equipoise.errors import EvidenceError, UsageError
from equipoise.runs.readers.measurements import Measurements
from equipoise.scaling.equilibrium import KINDS, Equilibrium, Kind, cheapest, default_answer, equilibria
from equipoise.scaling.fit import Points, points
from equipoise.spec.hardware import accelerator as known_accelerator
from equipoise.units import HOUR_S


def forecast(
    scores: pl.DataFrame, inquiry: Inquiry, *, own: Measurements | None = None, terms: Terms | None = None
) -> Forecast:
    """The times asked for with intervals and bills, the equilibria, and the evidence they rest on.

    scores: a frame of the table `scores`. own: the user's measurements: alone, or, where workload and
    accelerator are named too and the times are of whole trainings, as a group of their own beside the
    published ones.
    Raises EvidenceError where the evidence is too thin for any number with an interval.
    """
    with threadpool_limits(limits=1):  # the matrices are small: threads would only wait for each other
        return _forecast(results_of(scores), inquiry, own, terms or Terms())


def forecasts(
    scores: pl.DataFrame, inquiries: Sequence[Inquiry], *, terms: Terms | None = None
) -> tuple[Forecast | EvidenceError, ...]:
    """The answer to each inquiry, in order; where the evidence is too thin, the error that says so.

    As `forecast`, in less time: laws of the same rounds are fitted once.
    """
    results = results_of(scores)
    answers: list[Forecast | EvidenceError] = []
    with threadpool_limits(limits=1):
        for inquiry in inquiries:
            try:
                answers.append(_forecast(results, inquiry, None, terms or Terms()))
            except EvidenceError as err:
                answers.append(err)
    return tuple(answers)


def _forecast(results: Results, inquiry: Inquiry, own: Measurements | None, terms: Terms) -> Forecast:
    slug = None if inquiry.accelerator is None else known_accelerator(inquiry.accelerator).slug
    rates = _rates(slug, terms)
    if own is not None and not _joins(results, inquiry, own):
        if inquiry.law == POOLED:
            raise UsageError(
                f"--law {POOLED} needs published results beside {own.where}: name --workload and "
                "--accelerator that have some, and give whole times to train"
            )
        ground = _own_ground(inquiry, own)
    elif inquiry.workload is None or slug is None:
        raise UsageError("predict needs --workload and --accelerator, or --from FILE, or all three")
    else:
        ground = published_ground(results, inquiry, accelerator=slug, own=own)
    kinds, notes = _kinds(rates, terms)
    found: tuple[Equilibrium, ...] = ()
    if ground.domain.smallest < ground.domain.largest:
        found = equilibria(ground.curves_s, ground.domain, kinds=kinds, level=LEVEL)
    return Forecast(
        workload=inquiry.workload and workload_in(results.best, inquiry.workload),
        accelerator=slug,
        ground=replace(ground, notes=(*ground.notes, *notes)),
        bills=tuple(
            economics.bill(each.num_accelerators, each.time, rates, measured_energy_j=each.energy_j)
            for each in ground.foretold
        ),
        rates=rates,
        equilibria=found,
        answer=default_answer(found) if found else None,
        no_equilibria=None
        if found
        else "where more accelerators stop paying needs times at two sizes or more of this accelerator",
    )


def _joins(results: Results, inquiry: Inquiry, own: Measurements) -> bool:
    """Whether the user's times can stand beside published ones."""
    named = inquiry.workload is not None and inquiry.accelerator is not None
    if not named or not own.is_time_to_train or inquiry.law not in {None, POOLED}:
        return False
    return workload_in(results.best, str(inquiry.workload)) in results.best["workload"]


def _own_ground(inquiry: Inquiry, own: Measurements) -> Ground:
    """The laws fitted to the user's measurements alone."""
    data = points(own.num_accelerators, own.time_s, entry=own.entry)
    notes = list(own.notes)
    if inquiry.global_batch_samples is not None:
        notes.append("--global-batch was not used: laws of your own times know no batch.")
    if inquiry.workload and not own.is_time_to_train:
        notes.append(f"Published results were not joined: {own.where} has no times of whole trainings.")
    return fitted_ground(
        data,
        inquiry.sizes or sizes_of_interest(data.sizes),
        law=inquiry.law,
        work=own.work,
        evidence=_own_evidence(data, own.where),
        notes=tuple(notes),
    )


def _own_evidence(data: Points, where: str) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            kind="measured",
            ref=where,
            num_accelerators=int(size),
            time_s=float(np.median(data.time_s[data.num_accelerators == size])),
            weight=None,
            is_own=True,
        )
        for size in data.sizes
    )


def _rates(accelerator: str | None, terms: Terms) -> Rates:
    """The rates of the accelerator; of an unnamed one only what the user states."""
    if accelerator is not None:
        chip = known_accelerator(accelerator)
        return economics.rates(
            chip,
            own_price=terms.usd_per_accelerator_hour,
            region=terms.region,
            terms=terms.price_terms,
            power=terms.electricity(in_office=bool(chip.for_desktops)),
        )
    own = terms.usd_per_accelerator_hour
    return Rates(
        price=economics.price("", usd_per_accelerator_hour=own),
        grid=economics.grid(terms.region),
        accelerator_power_w=None,
        system_power=economics.SYSTEM_POWER,
        electricity=terms.electricity(),
    )


def _kinds(rates: Rates, terms: Terms) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """The equilibria to look for, and why some that were asked for are not among them.

    Least cost and energy need a reason to hurry: without one the smallest size is always the cheapest.
    """
    kinds, notes = [*KINDS], []
    if terms.usd_per_hour is None and terms.deadline_s is None:
        return tuple(kinds), ()
    deadline_s = terms.deadline_s or math.inf
    if rates.price is None:
        notes.append("No price is known for least cost: give --price in US dollars an accelerator-hour.")
    else:
        kinds.append(
            cheapest(
                "cost",
                per_accelerator=rates.price.usd_per_accelerator_hour / HOUR_S,
                fixed=(terms.usd_per_hour or 0.0) / HOUR_S,
                deadline_s=deadline_s,
            )
        )
    if terms.deadline_s is not None:
        if rates.accelerator_power_w is None:
            notes.append("No power is known for least energy: name the --accelerator.")
        else:
            watts = rates.accelerator_power_w * rates.system_power.factor
            kinds.append(cheapest("energy", per_accelerator=watts, deadline_s=deadline_s))
    return tuple(kinds), tuple(notes)
