"""The pipeline axis: stages of layers, one micro-batch behind the other. Sends between stages, and the idle
bubble.
"""

from dataclasses import dataclass

import numpy as np

from equipoise.perfmodel.axes.placement import group
from equipoise.perfmodel.collective import all_gather_s, send_s
from equipoise.perfmodel.compute import tokens_per_rank, value_bytes
from equipoise.perfmodel.grid import Grid, Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """How many layers the stages of a pipeline hold: the fullest, and the last, which has the logits too."""

    fullest: Numbers
    last: Numbers


def stages(load: Load, grid: Grid) -> Stages:
    """Layers by stage: every stage takes whole chunks, and the last what is left.

    Where that leaves the last stage none (a pipeline too long for its layers), it holds as many as the
    others.
    """
    fullest = np.ceil(load.layers / (grid.pp * grid.interleave)) * grid.interleave
    left = load.layers - (grid.pp - 1) * fullest
    return Stages(fullest=fullest, last=np.where(left > 0, left, fullest))


def send_s_per_microbatch(load: Load, machine: Machine, grid: Grid, parameters: Parameters) -> Numbers:
    """Bare seconds a stage spends on sending one micro-batch forward and its gradient back; 0 where pp is 1.

    Assumes each tensor rank sends its part, and where activations are not split along the sequence, gathers
    the others' inside its node.
    Source: Narayanan et al. 2021, section 4.1 (scatter and gather between stages); DeepSpeed splits them
    alike.
    """
    if not np.any(grid.pp > 1):
        return np.zeros(())
    ranks = group(grid.pp, grid.tp * grid.cp * grid.dp, machine)
    payload = tokens_per_rank(load, grid) * load.boundary_bytes * (value_bytes(grid) / 2)
    wires, links = machine.wires, parameters.collective
    once = send_s(payload / grid.tp, ranks, wires, links)
    if np.any((grid.tp > 1) & (grid.sequence_parallel <= 0)):
        whole = all_gather_s(payload, group(grid.tp, 1.0, machine), wires, links)
        once = once + np.where((grid.pp > 1) & (grid.sequence_parallel <= 0), whole, 0.0)
    return np.asarray(2 * grid.interleave * once * parameters.pp_overlap)


def bubble_s(grid: Grid, stage_s: Numbers) -> Numbers:
    """Idle seconds of a step while the pipeline fills and drains.

    stage_s: of one micro-batch on one stage. Source: Narayanan et al. 2021: (p - 1) / v stages.
    """
    return np.asarray((grid.pp - 1) / grid.interleave * stage_s)
