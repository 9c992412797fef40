"""Time of one collective from payload, group and links: rings, trees, switches that reduce. Elementwise.

Every argument is a float or an array; arrays broadcast. A search calls these on millions of configurations.
"""

from dataclasses import dataclass

import numpy as np

from equipoise.perfmodel.collective_parameters import CollectiveParameters
from equipoise.perfmodel.load import Floats

# A step of a tree moves a whole chunk: 28 us inside and 50 us between nodes where a step of a ring takes 3.4
# and 14 us, 8.2 and 3.6 times as long (NCCL src/graph/tuning.cc; aws-ofi-nccl include/nccl_ofi_tuner.h).
TREE_STEP = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A link as one accelerator sees it: byte/s in one direction, and the time of one empty step."""

    byte_per_s: Floats
    latency_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """The links of a group: inside its nodes, and each accelerator's share of its node's network cards.

    switch_reduces: 1 where the switch inside a node adds and multicasts by itself (NVLink SHARP: NVSwitch of
    generation 3, that is H100, and later), else 0.
    keeps_order: 1 where the network delivers in order, as the protocols for short messages need (InfiniBand,
    RoCE); 0 where it does not (TCP, EFA).
    """

    intra: Wire
    inter: Wire
    switch_reduces: Floats = 0.0
    keeps_order: Floats = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks that take part: so many on each of so many nodes; one rank is a group that never talks.

    num_sharing: groups that use one accelerator's share of the network cards at the same time; below 1 where
    accelerators stay silent and leave theirs.
    """

    ranks_per_node: Floats
    num_nodes: Floats
    num_sharing: Floats = 1.0

    @property
    def num_ranks(self) -> Floats:
        """Ranks in all."""
        return self.ranks_per_node * self.num_nodes


def _bulk_s(intra_s: Floats, inter_s: Floats, steps_s: Floats, parameters: CollectiveParameters) -> Floats:
    """Seconds of two pipelined phases, given their seconds on the wires and the time of all steps.

    A message shorter than the pipeline's fill is not cut into chunks and pays its trip twice; a longer one
    pays the fill once.
    """
    wire_s = np.maximum(intra_s, inter_s) + parameters.serial_share * np.minimum(intra_s, inter_s)
    return (
        parameters.launch_s + steps_s + wire_s + wire_s * (parameters.fill_s / (wire_s + parameters.fill_s))
    )


def _quick_s(
    intra_s: Floats,
    inter_s: Floats,
    steps_s: Floats,
    *,
    group: Group,
    wires: Wires,
    parameters: CollectiveParameters,
) -> Floats:
    """Seconds under a protocol that trades rate for latency; endless where the network cannot carry it."""
    carried = np.logical_or(np.less_equal(group.num_nodes, 1), np.greater(wires.keeps_order, 0))
    wire_s = np.maximum(intra_s, inter_s)
    seconds = parameters.launch_s + parameters.quick_step * steps_s + wire_s / parameters.quick_rate
    return np.where(carried, seconds, np.inf)


def _intra_byte_s(wires: Wires, parameters: CollectiveParameters) -> Floats:
    return 1.0 / (parameters.intra_fraction * wires.intra.byte_per_s)


def _inter_byte_s(group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    # A rank's seconds per byte over its share of the cards; none where the group stays inside a node.
    rate = parameters.inter_fraction * wires.inter.byte_per_s
    return np.greater(group.num_nodes, 1) * (group.num_sharing / rate)


def _steps_s(
    intra_steps: Floats, inter_steps: Floats, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    return intra_steps * (parameters.intra_latency_scale * wires.intra.latency_s) + inter_steps * (
        parameters.inter_latency_scale * wires.inter.latency_s
    )


def _silent_alone(seconds: Floats, group: Group) -> Floats:
    return np.where(np.greater(group.num_ranks, 1), seconds, 0.0)


def _faster_s(
    intra_s: Floats,
    inter_s: Floats,
    steps_s: Floats,
    *,
    group: Group,
    wires: Wires,
    parameters: CollectiveParameters,
) -> Floats:
    """Seconds by the faster protocol, given seconds on the wires and of all steps; 0.0 for one rank."""
    bulk_s = _bulk_s(intra_s, inter_s, steps_s, parameters)
    quick_s = _quick_s(intra_s, inter_s, steps_s, group=group, wires=wires, parameters=parameters)
    return _silent_alone(np.minimum(bulk_s, quick_s), group)


def _ring_wires_s(
    traffic_bytes: Floats, local_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> tuple[Floats, Floats]:
    """Seconds on the wire inside and between nodes when each rank passes on `traffic_bytes` around a ring.

    local_bytes: what a rank moves through its own memory on the way.
    """
    intra_s = np.greater(group.ranks_per_node, 1) * (
        traffic_bytes * _intra_byte_s(wires, parameters)
        + local_bytes * (parameters.local_share / wires.intra.byte_per_s)
    )
    # A node has a ring for each of its ranks' cards, so each card carries its part.
    inter_s = traffic_bytes / group.ranks_per_node * _inter_byte_s(group, wires, parameters)
    return intra_s, inter_s


def _ring_s(
    traffic_bytes: Floats, local_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of one trip around a ring through all ranks, by the faster protocol; 0.0 for one rank."""
    intra_s, inter_s = _ring_wires_s(traffic_bytes, local_bytes, group, wires, parameters)
    steps_s = _steps_s(group.num_ranks - group.num_nodes, group.num_nodes - 1, wires, parameters)
    return _faster_s(intra_s, inter_s, steps_s, group=group, wires=wires, parameters=parameters)


def _tree_wires_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> tuple[Floats, Floats]:
    """Seconds on the wire inside and between nodes of an all-reduce by two trees of half the payload each."""
    inside = group.ranks_per_node
    trip_s = payload_bytes / wires.intra.byte_per_s
    chain_s = trip_s * (2 / parameters.intra_fraction + parameters.local_share)
    # A reducing switch takes a rank's payload once and its share of sums once more, in each direction.
    switch_s = trip_s * ((inside + 1) / inside / parameters.switch_fraction)
    intra_s = np.where(np.greater(wires.switch_reduces, 0), np.minimum(chain_s, switch_s), chain_s)
    # Between two nodes each card sends the sums once, between more twice: down to two nodes or up and down.
    traffic_bytes = np.minimum(group.num_nodes - 1, 2) * payload_bytes / inside
    return np.greater(inside, 1) * intra_s, traffic_bytes * _inter_byte_s(group, wires, parameters)


def all_reduce_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of summing `payload_bytes` that every rank holds, all getting the sum: by ring or trees.

    Returns 0.0 for one rank.
    Assumes nothing else on the wires, equal ranks, and cards used by all ranks of a node alike.
    Source: Patarasuk and Yuan 2009 (ring); Sanders, Speck and Träff 2009 (two trees); steps as NCCL counts
    them (src/graph/tuning.cc); a reducing switch moves (p + 1) / p payloads in each direction.

    >>> wire = Wire(byte_per_s=100e9, latency_s=0.0)
    >>> ideal = CollectiveParameters(launch_s=0.0, intra_fraction=1.0, local_share=0.0, fill_s=1e-12)
    >>> pair = Group(ranks_per_node=2, num_nodes=1)
    >>> round(float(all_reduce_s(1e9, pair, Wires(intra=wire, inter=wire), ideal)), 9)
    0.01
    """
    ranks, nodes = group.num_ranks, group.num_nodes
    ring = _ring_wires_s(payload_bytes * (2 * (ranks - 1) / ranks), payload_bytes, group, wires, parameters)
    tree = _tree_wires_s(payload_bytes, group, wires, parameters)
    ring_steps_s = _steps_s(2 * (ranks - nodes), 2 * (nodes - 1), wires, parameters)
    tree_steps_s = _steps_s(2 * (group.ranks_per_node - 1), 2 * np.ceil(np.log2(nodes)), wires, parameters)
    steps_s = np.minimum(ring_steps_s, TREE_STEP * tree_steps_s)
    bulk_s = np.minimum(_bulk_s(*ring, steps_s, parameters), _bulk_s(*tree, steps_s, parameters))
    quick_s = _quick_s(*ring, tree_steps_s, group=group, wires=wires, parameters=parameters)
    return _silent_alone(np.minimum(bulk_s, quick_s), group)


def all_gather_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of giving every rank all parts of `payload_bytes`, of which each holds an equal part.

    payload_bytes: what a rank holds afterwards. Returns 0.0 for one rank.
    Assumes a ring through all ranks, with a rail for each network card.
    Source: Patarasuk and Yuan 2009: (p - 1) / p of the payload over each link in p - 1 steps.
    """
    ranks = group.num_ranks
    return _ring_s(payload_bytes * ((ranks - 1) / ranks), 0.5 * payload_bytes, group, wires, parameters)


def reduce_scatter_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of summing `payload_bytes` that every rank holds, each keeping an equal part of the sum.

    payload_bytes: what a rank holds before. Returns 0.0 for one rank.
    Assumes a ring through all ranks, with a rail for each network card: the reverse of an all-gather.
    Source: Patarasuk and Yuan 2009: (p - 1) / p of the payload over each link in p - 1 steps.
    """
    return all_gather_s(payload_bytes, group, wires, parameters)


def broadcast_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of giving every rank the `payload_bytes` that one of them holds; 0.0 for one rank.

    Assumes a pipelined chain through all ranks, with a rail for each network card.
    Source: Hockney 1994 for a step; every link carries the payload once.
    """
    return _ring_s(payload_bytes, 0.5 * payload_bytes, group, wires, parameters)


def all_to_all_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds in which every rank sends an equal part of `payload_bytes` to every rank, itself included.

    payload_bytes: what a rank holds before, and after. Returns 0.0 for one rank.
    Assumes equal parts, and that what goes to one node travels together.
    Source: each rank sends (g - 1) / p of its payload inside its node of g ranks, (p - g) / p to other nodes.
    """
    ranks, inside = group.num_ranks, group.ranks_per_node
    intra_s = payload_bytes * (inside - 1) / ranks * _intra_byte_s(wires, parameters)
    inter_s = payload_bytes * (ranks - inside) / ranks * _inter_byte_s(group, wires, parameters)
    steps_s = _steps_s(inside - 1, group.num_nodes - 1, wires, parameters)
    return _faster_s(intra_s, inter_s, steps_s, group=group, wires=wires, parameters=parameters)


def send_s(payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    """Seconds of sending `payload_bytes` to the next rank of a group: between nodes if it has several.

    group: the whole axis, e.g. all stages of a pipeline. Returns 0.0 for one rank.
    Assumes the slowest neighbour decides: with several nodes some pair crosses.
    Source: Hockney 1994: latency + bytes / rate.
    """
    between = np.greater(group.num_nodes, 1)
    intra_s = np.where(between, 0.0, payload_bytes * _intra_byte_s(wires, parameters))
    inter_s = payload_bytes * _inter_byte_s(group, wires, parameters)
    steps_s = _steps_s(np.where(between, 0.0, 1.0), np.where(between, 1.0, 0.0), wires, parameters)
    return _faster_s(intra_s, inter_s, steps_s, group=group, wires=wires, parameters=parameters)
