"""How unsure its links leave a step: as they were believed to be, and as the user timed them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from equipoise.advice.plans.planned import LinkDoubt
from equipoise.advice.plans.setting import Setting
from equipoise.perfmodel.collective_parameters import CollectiveParameters
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.grid import grid
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import stacked
from equipoise.spec.strategy import Strategy


def link_doubt(ground: Setting, strategy: Strategy) -> LinkDoubt | None:
    """How unsure links leave a step of a strategy; None where none was timed."""
    links = ground.model.links
    if links is None or not links.figures:
        return None
    nodes = machine(replace(ground.cluster, num_accelerators=strategy.num_accelerators))

    def log_sd(draws: Sequence[CollectiveParameters]) -> float:
        drawn = stacked([replace(ground.model.parameters, collective=each) for each in draws])
        return float(np.std(np.log(estimate(ground.load, nodes, grid([strategy]), drawn).step_s)))

    return LinkDoubt(usual_log_sd=log_sd(links.usual_draws), timed_log_sd=log_sd(links.draws))
