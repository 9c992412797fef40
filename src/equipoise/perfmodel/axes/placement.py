"""Where the ranks of an axis lie, and how much of their traffic stays bare beside work. Shared by all
axes.
"""

import numpy as np

from equipoise.perfmodel.collective import Group
from equipoise.perfmodel.grid import Numbers
from equipoise.perfmodel.load import Floats
from equipoise.perfmodel.machine import Machine


def group(size: Numbers, stride: Numbers | float, machine: Machine) -> Group:
    """The ranks of an axis whose neighbours are `stride` ranks apart.

    Axes lie from the inside out: tensor, context, data, pipeline; ranks fill one node after another.
    """
    inside = np.clip(np.floor(machine.node_size / stride), 1.0, size)
    return Group(ranks_per_node=inside, num_nodes=np.asarray(size / inside))


def bare_s(traffic_s: Numbers, beside_s: Numbers | float, bare_share: Floats) -> Numbers:
    """Seconds of traffic that work beside it does not hide: what is longer, and a share of the shorter.

    Source: max + eps x min for two phases side by side; eps 0 hides all it can, 1 hides nothing.
    """
    hidden = np.minimum(traffic_s, beside_s)
    return np.asarray(traffic_s - hidden * (1.0 - bare_share))
