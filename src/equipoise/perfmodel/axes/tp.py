"""The tensor axis: every layer's products are cut, and their sums travel."""

import numpy as np

from equipoise.perfmodel.axes.placement import bare_s, group
from equipoise.perfmodel.collective import all_gather_s, all_reduce_s, reduce_scatter_s
from equipoise.perfmodel.compute import LayerTime, tokens_per_rank, value_bytes
from equipoise.perfmodel.grid import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, Grid, Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters


def layer_traffic_s(
    load: Load, machine: Machine, grid: Grid, layer: LayerTime, parameters: Parameters
) -> Numbers:
    """Bare seconds of a layer's sums for one micro-batch; 0 where tp is 1.

    Assumes a sum behind each block, of a micro-batch's activations, on every pass; with sequence parallelism
    each is a reduce-scatter and an all-gather. Those on the way back run beside products for the weights'
    gradients, as far as the software has it so; the others only with tp_overlap.
    Source: Shoeybi et al. 2019; Korthikanti et al. 2022, table 4 (nothing of them shows on the way back).
    """
    if not np.any(grid.tp > 1):
        return np.zeros(())
    ranks = group(grid.tp, 1.0, machine)
    payload = tokens_per_rank(load, grid) * load.hidden * value_bytes(grid)
    whole = all_reduce_s(payload, ranks, machine.wires, parameters.collective)
    halves = reduce_scatter_s(payload, ranks, machine.wires, parameters.collective) + all_gather_s(
        payload, ranks, machine.wires, parameters.collective
    )
    # Recomputing every second product gathers its inputs again, and keeps what was scattered (torchtitan).
    again = (
        (grid.recompute == RECOMPUTE_SELECTIVE) & (grid.fused_attention > 0) & (grid.sequence_parallel > 0)
    )
    full = (grid.recompute == RECOMPUTE_FULL) * parameters.recompute_share
    passes = 1 + parameters.tp_bare + full + 0.5 * again
    traffic = load.num_sums * passes * np.where(grid.sequence_parallel > 0, halves, whole)
    beside = layer.forward_s + layer.backward_s
    return np.where(grid.tp_overlap > 0, bare_s(traffic, beside, parameters.tp_overlap), traffic)
