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


def _together(intra: Floats, inter: Floats, parameters: CollectiveParameters) -> Floats:
    # Two pipelined phases: the longer, and what it does not hide of the shorter.
    return np.maximum(intra, inter) + parameters.serial_share * np.minimum(intra, inter)


def _steps_s(
    intra_steps: Floats, inter_steps: Floats, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    return intra_steps * (parameters.intra_latency_scale * wires.intra.latency_s) + inter_steps * (
        parameters.inter_latency_scale * wires.inter.latency_s
    )


def _inter_byte_s(group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    # A rank's seconds per byte over its share of the cards; none where the group stays inside a node.
    rate = parameters.inter_fraction * wires.inter.byte_per_s
    return np.greater(group.num_nodes, 1) * (group.num_sharing / rate)


def _seconds(
    payload_bytes: Floats,
    byte_s: Floats,
    steps_s: Floats,
    *,
    quick_steps_s: Floats,
    group: Group,
    wires: Wires,
    parameters: CollectiveParameters,
) -> Floats:
    """Seconds by the faster of two protocols, given seconds on the wires per byte and those of all steps.

    The ordinary one cuts a long message into chunks and pays the pipeline's fill once; a message shorter than
    the fill is not cut and pays its trip twice. The other trades rate for latency where the network can.
    Only the last two lines are as large as the payloads; all before are as large as the groups.
    """
    launch_s = np.greater(group.num_ranks, 1) * parameters.launch_s
    carried = np.logical_or(np.less_equal(group.num_nodes, 1), np.greater(wires.keeps_order, 0))
    quick_start_s = np.where(carried, launch_s + parameters.quick_step * quick_steps_s, np.inf)
    wire_s = payload_bytes * byte_s
    bulk_s = wire_s * (1.0 + parameters.fill_s / (wire_s + parameters.fill_s)) + (launch_s + steps_s)
    return np.minimum(bulk_s, wire_s / parameters.quick_rate + quick_start_s)


def _as_measured(
    operation: str, seconds: Floats, payload_bytes: Floats, group: Group, parameters: CollectiveParameters
) -> Floats:
    """Seconds with what was measured of the operation on this machine; as they are where nothing was."""
    known = None if parameters.measured is None else parameters.measured.get(operation)
    return seconds if known is None else seconds * np.exp(known.at(payload_bytes, group))


def _ring_byte_s(
    traffic: Floats, local: float, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds on the wires per payload byte, of which each rank passes `traffic` bytes on around a ring.

    local: bytes that a rank moves through its own memory on the way.
    """
    rate = wires.intra.byte_per_s
    intra_s = traffic / (parameters.intra_fraction * rate) + local * parameters.local_share / rate
    # A node has a ring for each of its ranks' cards, so each card carries its part.
    inter_s = traffic / group.ranks_per_node * _inter_byte_s(group, wires, parameters)
    return _together(np.greater(group.ranks_per_node, 1) * intra_s, inter_s, parameters)


def _ring_s(
    payload_bytes: Floats, traffic: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of one trip around a ring through all ranks, `traffic` of each byte on every link."""
    byte_s = _ring_byte_s(traffic, 0.5, group, wires, parameters)
    steps_s = _steps_s(group.num_ranks - group.num_nodes, group.num_nodes - 1, wires, parameters)
    return _seconds(
        payload_bytes,
        byte_s,
        steps_s,
        quick_steps_s=steps_s,
        group=group,
        wires=wires,
        parameters=parameters,
    )


def _tree_byte_s(group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    """Seconds on the wires per byte of an all-reduce by two trees of half the payload each."""
    inside, rate = group.ranks_per_node, wires.intra.byte_per_s
    chain_s = (2 / parameters.intra_fraction + parameters.local_share) / rate
    # A reducing switch takes a rank's payload once and its share of sums once more, in each direction.
    switch_s = (inside + 1) / inside / (parameters.switch_fraction * rate)
    intra_s = np.where(np.greater(wires.switch_reduces, 0), np.minimum(chain_s, switch_s), chain_s)
    # Between two nodes each card sends the sums once, between more twice: down to two nodes, or up and down.
    inter_s = np.minimum(group.num_nodes - 1, 2) / inside * _inter_byte_s(group, wires, parameters)
    return _together(np.greater(inside, 1) * intra_s, inter_s, parameters)


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
    byte_s = np.minimum(
        _ring_byte_s(2 * (ranks - 1) / ranks, 1.0, group, wires, parameters),
        _tree_byte_s(group, wires, parameters),
    )
    ring_s = _steps_s(2 * (ranks - nodes), 2 * (nodes - 1), wires, parameters)
    tree_s = _steps_s(2 * (group.ranks_per_node - 1), 2 * np.ceil(np.log2(nodes)), wires, parameters)
    seconds = _seconds(
        payload_bytes,
        byte_s,
        np.minimum(ring_s, TREE_STEP * tree_s),
        quick_steps_s=tree_s,
        group=group,
        wires=wires,
        parameters=parameters,
    )
    return _as_measured("all_reduce", seconds, payload_bytes, group, parameters)


def all_gather_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of giving every rank all parts of `payload_bytes`, of which each holds an equal part.

    payload_bytes: what a rank holds afterwards. Returns 0.0 for one rank.
    Assumes a ring through all ranks, with a rail for each network card.
    Source: Patarasuk and Yuan 2009: (p - 1) / p of the payload over each link in p - 1 steps.
    """
    seconds = _parted_s(payload_bytes, group, wires, parameters)
    return _as_measured("all_gather", seconds, payload_bytes, group, parameters)


def reduce_scatter_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of summing `payload_bytes` that every rank holds, each keeping an equal part of the sum.

    payload_bytes: what a rank holds before. Returns 0.0 for one rank.
    Assumes a ring through all ranks, with a rail for each network card: the reverse of an all-gather.
    Source: Patarasuk and Yuan 2009: (p - 1) / p of the payload over each link in p - 1 steps.
    """
    seconds = _parted_s(payload_bytes, group, wires, parameters)
    return _as_measured("reduce_scatter", seconds, payload_bytes, group, parameters)


def _parted_s(payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    """Seconds of a ring on which each rank passes on all parts of the payload but one."""
    ranks = group.num_ranks
    return _ring_s(payload_bytes, (ranks - 1) / ranks, group, wires, parameters)


def broadcast_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of giving every rank the `payload_bytes` that one of them holds; 0.0 for one rank.

    Assumes a pipelined chain through all ranks, with a rail for each network card.
    Source: Hockney 1994 for a step; every link carries the payload once.
    """
    seconds = _ring_s(payload_bytes, np.greater(group.num_ranks, 1) * 1.0, group, wires, parameters)
    return _as_measured("broadcast", seconds, payload_bytes, group, parameters)


def all_to_all_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds in which every rank sends an equal part of `payload_bytes` to every rank, itself included.

    payload_bytes: what a rank holds before, and after. Returns 0.0 for one rank.
    Assumes equal parts, and that what goes to one node travels together.
    Source: each rank sends (g - 1) / p of its payload inside its node of g ranks, (p - g) / p to other nodes.
    """
    ranks, inside = group.num_ranks, group.ranks_per_node
    intra_s = (inside - 1) / ranks / (parameters.intra_fraction * wires.intra.byte_per_s)
    inter_s = (ranks - inside) / ranks * _inter_byte_s(group, wires, parameters)
    steps_s = _steps_s(inside - 1, group.num_nodes - 1, wires, parameters)
    seconds = _seconds(
        payload_bytes,
        _together(intra_s, inter_s, parameters),
        steps_s,
        quick_steps_s=steps_s,
        group=group,
        wires=wires,
        parameters=parameters,
    )
    return _as_measured("all_to_all", seconds, payload_bytes, group, parameters)


def send_s(payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    """Seconds of sending `payload_bytes` to the next rank of a group: between nodes if it has several.

    group: the whole axis, e.g. all stages of a pipeline. Returns 0.0 for one rank.
    Assumes the slowest neighbour decides: with several nodes some pair crosses.
    Source: Hockney 1994: latency + bytes / rate.
    """
    between = np.greater(group.num_nodes, 1)
    within = np.logical_and(np.greater(group.ranks_per_node, 1), np.logical_not(between))
    intra_s = within / (parameters.intra_fraction * wires.intra.byte_per_s)
    steps_s = _steps_s(within * 1.0, between * 1.0, wires, parameters)
    seconds = _seconds(
        payload_bytes,
        intra_s + _inter_byte_s(group, wires, parameters),
        steps_s,
        quick_steps_s=steps_s,
        group=group,
        wires=wires,
        parameters=parameters,
    )
    return _as_measured("send", seconds, payload_bytes, group, parameters)
