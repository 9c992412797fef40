"""Unequal accelerators that train together: what sharing out by speed would gain, and their price."""

from dataclasses import replace
from statistics import fmean

from equipoise import economics
from equipoise.decide.strategy_search import Problem
from equipoise.decide.systems import AskedSystem
from equipoise.economics import Electricity, Price, PriceTerms, Rates
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.machine import machine
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import Strategy

JOINT = "+"


def kinds(chip: Accelerator) -> tuple[str, ...]:
    """The slugs of the accelerators that one stands for: several for a mixture, else its own."""
    return tuple(chip.slug.split(JOINT))


def system_rates(system: AskedSystem, terms: PriceTerms, *, region: str, power: Electricity | None) -> Rates:
    """The rates of a system on some terms; a mixture costs the mean of its parts, where all have a price.

    power: of the user's own electricity and building. Source: definition; equal numbers of each.
    """
    assert system.cluster is not None
    chip = system.cluster.accelerator
    own = economics.rates(
        chip, user_price=system.usd_per_accelerator_hour, region=region, terms=terms, power=power
    )
    prices = [economics.price(slug, terms=terms) for slug in kinds(chip)]
    if own.price is not None or len(prices) == 1 or None in prices:
        return own
    known = [each for each in prices if each is not None]
    joint = Price(
        accelerator=chip.slug,
        usd_per_accelerator_hour=fmean(each.usd_per_accelerator_hour for each in known),
        low=fmean(each.low for each in known),
        high=fmean(each.high for each in known),
        basis=f"mean of {' and '.join(each.accelerator for each in known)}",
        terms=terms,
        log_half_width=max(each.log_half_width for each in known),
    )
    return replace(own, price=joint)


def speed_shares_gain(problem: Problem, chosen: Strategy, catalogue: Catalogue) -> float:
    """The fraction by which a step could get shorter if samples were shared out by speed; 0 for equal chips.

    Assumes data parallel ranks of one kind each, and traffic alike: an upper bound.
    Source: equal shares take as long as the slowest, shares by speed the harmonic mean.
    """
    nodes = replace(problem.cluster, num_accelerators=chosen.num_accelerators)
    steps = []
    for slug in kinds(nodes.accelerator):
        alike = replace(nodes, accelerator=catalogue.accelerator(slug))
        found = estimate(problem.load, machine(alike), grid([chosen]), problem.model.parameters)
        steps.append(float(found.step_s.max()))
    return 1.0 - len(steps) / sum(1.0 / each for each in steps) / max(steps)
