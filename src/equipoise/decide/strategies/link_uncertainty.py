"""How uncertain its links leave a step: by the tables, and as the user timed them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise.decide.strategies.problem import Problem
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import CollectiveParameters, stacked
from equipoise.spec.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUncertainty:
    """How uncertain links leave a step, all else known: standard deviations of its logarithm.

    usual_log_sd: by the tables; timed_log_sd: as the user timed them.
    """

    usual_log_sd: float
    timed_log_sd: float


def link_uncertainty(problem: Problem, strategy: Strategy) -> LinkUncertainty | None:
    """How uncertain links leave a step of a strategy; None where none was timed."""
    links = problem.model.links
    if links is None or not links.figures:
        return None
    nodes = machine(replace(problem.cluster, num_accelerators=strategy.num_accelerators))

    def log_sd(draws: Sequence[CollectiveParameters]) -> float:
        drawn = stacked([replace(problem.model.parameters, collective=each) for each in draws])
        return float(np.std(np.log(estimate(problem.load, nodes, grid([strategy]), drawn).step_s)))

    return LinkUncertainty(usual_log_sd=log_sd(links.usual_draws), timed_log_sd=log_sd(links.draws))
