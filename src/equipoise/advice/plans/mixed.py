"""Unequal accelerators that train together: what sharing out by speed would gain, and their price."""

from dataclasses import replace
from statistics import fmean

from equipoise import economics
from equipoise.advice.forecast.answer import Terms
from equipoise.advice.plans.planned import Option, Question
from equipoise.economics import Price, Rates
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec.cluster import Cluster, cluster
from equipoise.spec.hardware import Accelerator

JOINT = "+"


def kinds(chip: Accelerator) -> tuple[str, ...]:
    """The slugs of the accelerators that one stands for: several for a mixture, else its own."""
    return tuple(chip.slug.split(JOINT))


def rates(chip: Accelerator, terms: Terms) -> Rates:
    """The rates of an accelerator; a mixture costs the mean of its parts, where all have a price.

    Source: definition; equal numbers of each.
    """
    own = economics.rates(
        chip,
        own_price=terms.usd_per_accelerator_hour,
        region=terms.region,
        terms=terms.price_terms,
        power=terms.electricity(in_office=bool(chip.for_desktops)),
    )
    prices = [economics.price(slug, terms=terms.price_terms) for slug in kinds(chip)]
    if own.price is not None or len(prices) == 1 or None in prices:
        return own
    known = [each for each in prices if each is not None]
    joint = Price(
        accelerator=chip.slug,
        usd_per_accelerator_hour=fmean(each.usd_per_accelerator_hour for each in known),
        low=fmean(each.low for each in known),
        high=fmean(each.high for each in known),
        basis=f"mean of {' and '.join(each.accelerator for each in known)}",
        terms=terms.price_terms,
        log_half_width=max(each.log_half_width for each in known),
    )
    return replace(own, price=joint)


def speed_shares_gain(
    question: Question, nodes: Cluster, load: Load, parameters: Parameters, option: Option
) -> float:
    """The fraction by which a step could get shorter if samples were shared out by speed; 0 for equal chips.

    Assumes data parallel ranks of one kind each, and traffic alike: an upper bound.
    Source: equal shares take as long as the slowest, shares by speed the harmonic mean.
    """
    steps = []
    for slug in kinds(nodes.accelerator):
        alone = cluster(
            slug,
            num_accelerators=option.num_accelerators,
            power_cap_w=question.power_cap_w,
            **question.node,
        )
        alike = replace(nodes, accelerator=alone.accelerator)
        found = estimate(load, machine(alike), grid([option.strategy]), parameters)
        steps.append(float(found.step_s.max()))
    return 1.0 - len(steps) / sum(1.0 / each for each in steps) / max(steps)
