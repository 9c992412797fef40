"""The expert axis: experts lie on different ranks, and tokens travel to theirs and back."""

from dataclasses import replace

import numpy as np

from equipoise.perfmodel.axes.placement import bare_s, group
from equipoise.perfmodel.collective import all_to_all_s
from equipoise.perfmodel.compute import LayerTime, tokens_per_rank
from equipoise.perfmodel.grid import RECOMPUTE_FULL, Grid, Numbers
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import Machine
from equipoise.perfmodel.parameters import Parameters

# To the experts and back again, on each pass.
TRIPS_PER_PASS = 2


def layer_traffic_s(
    load: Load, machine: Machine, grid: Grid, layer: LayerTime, parameters: Parameters
) -> Numbers:
    """Bare seconds of a layer's tokens on their way to experts and back, for one micro-batch; 0 where ep is
    1.

    Assumes tokens spread evenly over ranks; one travels once to every node, and there once to every rank,
    where it meets experts.
    Source: Lepikhin et al. 2020 (GShard); DeepSeek-AI 2024, section 3.2.2 (one copy a node, then over
    NVLink).
    """
    if not np.any(grid.ep > 1):
        return np.zeros(())
    ranks = group(grid.ep, 1.0, machine)
    copies = np.minimum(load.top_k, grid.ep)
    # Between nodes fewer copies travel than inside: the cards see only a part of the payload.
    crossing = np.minimum(load.top_k, ranks.num_nodes) / np.maximum(copies, 1.0)
    ranks = replace(ranks, num_sharing=ranks.num_sharing * crossing)
    payload = tokens_per_rank(load, grid) / grid.tp * (load.routed_bytes * copies)
    passes = 2 + (grid.recompute == RECOMPUTE_FULL)
    traffic = TRIPS_PER_PASS * passes * all_to_all_s(payload, ranks, machine.wires, parameters.collective)
    return bare_s(np.asarray(traffic), layer.forward_s + layer.backward_s, parameters.ep_overlap)
