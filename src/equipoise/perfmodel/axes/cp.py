"""The context axis: each rank holds a part of every sequence, and keys and values travel."""

import numpy as np

from equipoise.perfmodel.axes.placement import bare_s, group
from equipoise.perfmodel.collective import all_gather_s
from equipoise.perfmodel.compute import LayerTime
from equipoise.perfmodel.grid import RECOMPUTE_FULL, Grid, Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters

# Forward, again for the way back, and the gradients of both on their way home.
_PASSES = 3


def layer_traffic_s(
    load: Load, machine: Machine, grid: Grid, layer: LayerTime, parameters: Parameters
) -> Numbers:
    """Bare seconds of a layer's keys and values for one micro-batch; 0 where cp is 1.

    Assumes every rank comes to see all keys of its sequences, beside the layer's own work.
    Source: Liu et al. 2023 (ring attention); Llama team 2024, section 3.3.2 (gathered keys and values).
    """
    if not np.any(grid.cp > 1):
        return np.zeros(())
    ranks = group(grid.cp, grid.tp, machine)
    payload = (
        grid.microbatch_samples
        * load.sequence
        * load.kv_bytes
        / np.minimum(grid.tp, np.maximum(load.kv_heads, 1.0))
    )
    passes = _PASSES + (grid.recompute == RECOMPUTE_FULL)
    traffic = passes * all_gather_s(payload, ranks, machine.wires, parameters.collective)
    return bare_s(np.asarray(traffic), layer.forward_s + layer.backward_s, parameters.cp_overlap)
