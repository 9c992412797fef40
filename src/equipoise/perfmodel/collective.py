"""Time of one collective from payload, group and links: rings, trees, switches that reduce. Elementwise.

Every argument is a float or an array; arrays broadcast. A search calls these on millions of configurations.
"""

from dataclasses import dataclass

import numpy as np

from equipoise.perfmodel.collective_parameters import CollectiveParameters
from equipoise.perfmodel.load import Floats


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
    """

    intra: Wire
    inter: Wire
    switch_reduces: Floats = 0.0


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


def _filled_s(wire_s: Floats, fill_s: Floats) -> Floats:
    # Half the rate at wire_s = fill_s; the shortfall decays as the root of the size: chunks and channels
    # grow with the payload (docs/experiments/0005-collectives.md).
    return wire_s + np.sqrt(wire_s * fill_s)


def _streamed_s(
    intra_s: Floats, inter_s: Floats, *, latency_s: Floats, parameters: CollectiveParameters
) -> Floats:
    """Seconds of two pipelined phases given their seconds on the wire and the time of all steps.

    Latency and stream add in quadrature: steps hide behind the stream but where the two are alike.
    """
    intra_s = _filled_s(intra_s, parameters.intra_fill_s)
    inter_s = _filled_s(inter_s, parameters.inter_fill_s)
    stream_s = np.maximum(intra_s, inter_s) + parameters.serial_share * np.minimum(intra_s, inter_s)
    return np.sqrt(latency_s * latency_s + stream_s * stream_s)


def _intra_byte_s(wires: Wires, parameters: CollectiveParameters) -> Floats:
    return 1.0 / (parameters.intra_fraction * wires.intra.byte_per_s)


def _inter_byte_s(group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    # A rank's seconds per byte over its share of the cards; none where the group stays inside a node.
    rate = parameters.inter_fraction * wires.inter.byte_per_s
    return np.where(np.greater(group.num_nodes, 1), group.num_sharing / rate, 0.0)


def _latency_s(
    intra_steps: Floats, inter_steps: Floats, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    return (
        parameters.launch_s
        + intra_steps * (parameters.intra_latency_scale * wires.intra.latency_s)
        + inter_steps * (parameters.inter_latency_scale * wires.inter.latency_s)
    )


def _silent_alone(seconds: Floats, group: Group) -> Floats:
    return np.where(np.greater(group.num_ranks, 1), seconds, 0.0)


def _ring_s(
    payload_bytes: Floats,
    group: Group,
    wires: Wires,
    parameters: CollectiveParameters,
    *,
    trips: float,
    passed: Floats,
) -> Floats:
    """Seconds of a ring that a payload goes round `trips` times, the share `passed` of it on each link."""
    ranks, nodes = group.num_ranks, group.num_nodes
    traffic_bytes = trips * passed * payload_bytes
    local_bytes = 0.5 * trips * parameters.local_share * payload_bytes
    talks_inside = np.greater(group.ranks_per_node, 1)
    intra_s = talks_inside * (
        traffic_bytes * _intra_byte_s(wires, parameters) + local_bytes / wires.intra.byte_per_s
    )
    # A node has a ring for each of its ranks' cards, so each card carries its part.
    inter_s = traffic_bytes / group.ranks_per_node * _inter_byte_s(group, wires, parameters)
    latency_s = _latency_s(trips * (ranks - nodes), trips * (nodes - 1), wires, parameters)
    return _streamed_s(intra_s, inter_s, latency_s=latency_s, parameters=parameters)


def _hierarchical_all_reduce_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of scattering sums inside each node, two trees between nodes, and gathering inside."""
    inside, nodes = group.ranks_per_node, group.num_nodes
    trip_s = payload_bytes / wires.intra.byte_per_s
    ring_s = trip_s * (2 * (inside - 1) / inside / parameters.intra_fraction + parameters.local_share)
    # A reducing switch takes a rank's payload once and its share of sums once more, in each direction.
    switch_s = trip_s * (inside + 1) / inside / parameters.switch_fraction
    intra_s = np.where(np.greater(wires.switch_reduces, 0), np.minimum(ring_s, switch_s), ring_s)
    intra_s = np.where(np.greater(inside, 1), intra_s, 0.0)
    # Two trees of half the payload: between two nodes each link is used once a direction, between more twice.
    traffic_bytes = np.minimum(nodes - 1, 2) * payload_bytes / inside
    inter_s = traffic_bytes * _inter_byte_s(group, wires, parameters)
    latency_s = _latency_s(2 * (inside - 1), 2 * np.ceil(np.log2(nodes)), wires, parameters)
    return _streamed_s(intra_s, inter_s, latency_s=latency_s, parameters=parameters)


def all_reduce_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of summing `payload_bytes` that every rank holds, all getting the sum: by ring or trees.

    Returns 0.0 for one rank.
    Assumes nothing else on the wires, equal ranks, and cards used by all ranks of a node alike.
    Source: Patarasuk and Yuan 2009 (ring); Sanders, Speck and Träff 2009 (two trees); steps as NCCL counts
    them (src/graph/tuning.cc); a reducing switch moves (p + 1) / p payloads in each direction.

    >>> from dataclasses import replace
    >>> from equipoise.perfmodel.collective_parameters import TYPICAL
    >>> wire = Wire(byte_per_s=100e9, latency_s=0.0)
    >>> ideal = replace(TYPICAL, launch_s=0.0, intra_fraction=1.0, local_share=0.0, intra_fill_s=0.0)
    >>> float(all_reduce_s(1e9, Group(ranks_per_node=2, num_nodes=1), Wires(intra=wire, inter=wire), ideal))
    0.01
    """
    ranks = group.num_ranks
    ring_s = _ring_s(payload_bytes, group, wires, parameters, trips=2.0, passed=(ranks - 1) / ranks)
    tree_s = _hierarchical_all_reduce_s(payload_bytes, group, wires, parameters)
    return _silent_alone(np.minimum(ring_s, tree_s), group)


def all_gather_s(
    payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters
) -> Floats:
    """Seconds of giving every rank all parts of `payload_bytes`, of which each holds an equal part.

    payload_bytes: what a rank holds afterwards. Returns 0.0 for one rank.
    Assumes a ring through all ranks, with a rail for each network card.
    Source: Patarasuk and Yuan 2009: (p - 1) / p of the payload over each link in p - 1 steps.
    """
    ranks = group.num_ranks
    seconds = _ring_s(payload_bytes, group, wires, parameters, trips=1.0, passed=(ranks - 1) / ranks)
    return _silent_alone(seconds, group)


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
    return _silent_alone(_ring_s(payload_bytes, group, wires, parameters, trips=1.0, passed=1.0), group)


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
    latency_s = _latency_s(inside - 1, group.num_nodes - 1, wires, parameters)
    return _silent_alone(_streamed_s(intra_s, inter_s, latency_s=latency_s, parameters=parameters), group)


def send_s(payload_bytes: Floats, group: Group, wires: Wires, parameters: CollectiveParameters) -> Floats:
    """Seconds of sending `payload_bytes` to the next rank of a group: between nodes if it has several.

    group: the whole axis, e.g. all stages of a pipeline. Returns 0.0 for one rank.
    Assumes the slowest neighbour decides: with several nodes some pair crosses.
    Source: Hockney 1994: latency + bytes / rate.
    """
    between = np.greater(group.num_nodes, 1)
    intra_s = np.where(between, 0.0, payload_bytes * _intra_byte_s(wires, parameters))
    inter_s = payload_bytes * _inter_byte_s(group, wires, parameters)
    latency_s = _latency_s(np.where(between, 0.0, 1.0), np.where(between, 1.0, 0.0), wires, parameters)
    return _silent_alone(_streamed_s(intra_s, inter_s, latency_s=latency_s, parameters=parameters), group)
