"""Rates of a machine's accelerators and links, and groups of ranks on it, as floats or arrays."""

from typing import Final

import numpy as np
from msgspec import Struct

from equipoise.errors import SpecError
from equipoise.perfmodel.load import Floats
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import PRECISIONS, peak_in


class Wire(Struct, frozen=True, kw_only=True):
    """A link as seen by one accelerator: byte/s in one direction, and latency of one step."""

    byte_per_s: Floats
    latency_s: Floats


class Wires(Struct, frozen=True, kw_only=True):
    """The links of a group: inside its nodes, and each accelerator's share of its node's network cards.

    switch_reduces: 1 where the switch inside a node reduces and multicasts (NVLink SHARP: NVSwitch of
    generation 3, with H100, and later), else 0.
    keeps_order: 1 where the network delivers in order, as low-latency protocols need (InfiniBand, RoCE), else
    0 (TCP, EFA).
    """

    intra: Wire
    inter: Wire
    switch_reduces: Floats = 0.0
    keeps_order: Floats = 1.0


class Group(Struct, frozen=True, kw_only=True):
    """Ranks that communicate: ranks_per_node on each of num_nodes; a group of one rank never communicates.

    num_sharing: groups that use one accelerator's share of the network cards at the same time; below 1 where
    some accelerators send nothing, so that others can use their share. intra_slowdown: rate of links inside a
    node divided by that of the group's slowest link, where not all ranks are joined by the fast ones.
    """

    ranks_per_node: Floats
    num_nodes: Floats
    num_sharing: Floats = 1.0
    intra_slowdown: Floats = 1.0

    @property
    def num_ranks(self) -> Floats:
        """Total number of ranks."""
        return self.ranks_per_node * self.num_nodes


# Sizes and strides of groups inside a node of eight.
GROUPS = tuple((size, stride) for stride in (1, 2, 4) for size in range(2, 8 // stride + 1))


class Machine(Struct, frozen=True, kw_only=True):
    """Rates of one cluster; every field a float, or arrays that broadcast.

    peak_flop_per_s: dense peak by precision of spec.strategy.PRECISIONS; NaN where the chip lacks it.
    achievable_fraction: share of the peak that large matrix products reach; above 1 where the clock exceeds
    that of the stated peak. achievable_fp32_fraction: the same for fp32, outside matrix units. memory_bytes:
    usable by programs. intra_*, inter_*: links inside a node, and an accelerator's share of the node's
    network cards, one direction. power_share: power limit over the power at which the peaks hold, at most 1.
    host_byte_per_s: between an accelerator and host memory. host_memory_bytes: an accelerator's share of it.
    switch_reduces, keeps_order: see `Wires`. group_slowdowns: slowdown of rings of the groups in GROUPS
    relative to intra_byte_per_s, where some ranks are joined by fewer links; has_groups is 1 there, else 0.
    bridged_ranks: ranks joined by the links inside a node; links to others are bridge_slowdown times slower.
    oversubscription: bandwidth into over bandwidth out of leaf switches, of leaf_ranks accelerators each.
    peer_ranks: ranks of a node with direct access to each other's memory; 1 where all goes through the host.
    asynchronous_products, grace_host: see `Accelerator`. pads_heads: 1 where a head of fewer than 128 values
    costs attention as much as one of 128, else 0.
    """

    peak_flop_per_s: tuple[Floats, ...]
    achievable_fraction: Floats
    achievable_fp32_fraction: Floats
    memory_bytes: Floats
    memory_byte_per_s: Floats
    power_share: Floats
    node_size: Floats
    intra_byte_per_s: Floats
    intra_latency_s: Floats
    inter_byte_per_s: Floats
    inter_latency_s: Floats
    host_byte_per_s: Floats
    switch_reduces: Floats
    keeps_order: Floats
    peer_ranks: Floats
    host_memory_bytes: Floats = np.inf
    asynchronous_products: Floats = 0.0
    grace_host: Floats = 0.0
    pads_heads: Floats = 0.0
    has_groups: Floats = 0.0
    group_slowdowns: tuple[Floats, ...] = (1.0,) * len(GROUPS)
    bridged_ranks: Floats = np.inf
    bridge_slowdown: Floats = 1.0
    oversubscription: Floats = 1.0
    leaf_ranks: Floats = 1.0

    @property
    def wires(self) -> Wires:
        """The links, as arguments of collectives."""
        return Wires(
            intra=Wire(byte_per_s=self.intra_byte_per_s, latency_s=self.intra_latency_s),
            inter=Wire(byte_per_s=self.inter_byte_per_s, latency_s=self.inter_latency_s),
            switch_reduces=self.switch_reduces,
            keeps_order=self.keeps_order,
        )


# Fields of `Machine` that hold several rates.
TUPLES = ("peak_flop_per_s", "group_slowdowns")
# Achieved rate of PCIe 4.0 x16, one direction: the default where a host link's rate is not stated.
HOST_BYTE_PER_S = 25e9
# Hosts have about two to three times the memory of their accelerators (DGX A100 640 GB: 2 TB; DGX H100: 2 TB
# for 640 GB; DGX B200: 2 to 4 TB for 1.4 TB).
HOST_MEMORY_RATIO: Final = 2.0


def machine(cluster: Cluster) -> Machine:
    """The rates of a cluster.

    Raises SpecError where the accelerator lacks a rate that every estimate needs.
    Source: attention kernels fill the 128 lanes of a TPU's registers (jax-ml/jax, issue 30861).
    """
    chip = cluster.accelerator
    for name in ("memory_bytes", "memory_byte_per_s"):
        if getattr(chip, name) is None:
            raise SpecError(
                f"accelerator {chip.slug!r}: {name} is not known; estimates need it: add it with --hardware"
            )
    peaks = tuple(float(peak_in(chip, each) or np.nan) for each in PRECISIONS)
    if np.isnan(peaks).all():
        raise SpecError(
            f"accelerator {chip.slug!r}: no peak_*_flop_per_s of 16 bits or more is known; "
            "estimates need one: add it with --hardware"
        )
    return Machine(
        peak_flop_per_s=peaks,
        achievable_fraction=chip.achievable_fraction,
        achievable_fp32_fraction=chip.achievable_fp32_fraction,
        memory_bytes=chip.usable_memory_bytes or 0.0,
        memory_byte_per_s=float(chip.memory_byte_per_s or 0),
        power_share=chip.power_share,
        node_size=float(cluster.node_size),
        intra_byte_per_s=_intra_byte_per_s(cluster),
        intra_latency_s=cluster.intra.latency_s,
        inter_byte_per_s=cluster.inter.byte_per_s,
        inter_latency_s=cluster.inter.latency_s,
        host_byte_per_s=chip.host_byte_per_s or HOST_BYTE_PER_S,
        host_memory_bytes=HOST_MEMORY_RATIO * float(chip.memory_bytes or 0),
        switch_reduces=float(cluster.switch_reduces),
        keeps_order=float(cluster.keeps_order),
        asynchronous_products=float(chip.asynchronous_products or 0),
        grace_host=float(bool(chip.grace_host)),
        pads_heads=float(chip.kind == "tpu"),
        has_groups=float(bool(cluster.links_between)),
        group_slowdowns=tuple(cluster.intra.byte_per_s / cluster.group_byte_per_s(*each) for each in GROUPS),
        bridged_ranks=float(cluster.bridged) if cluster.topology == "bridge" else np.inf,
        bridge_slowdown=cluster.intra.byte_per_s / cluster.beyond_bridge_byte_per_s,
        oversubscription=cluster.oversubscription,
        leaf_ranks=float(cluster.leaf_nodes * cluster.node_size),
        peer_ranks=float(_peer_ranks(cluster)),
    )


def _peer_ranks(cluster: Cluster) -> int:
    """Accelerators of a node that are joined by direct links."""
    if cluster.topology == "host":
        return 1
    return min(cluster.bridged, cluster.node_size) if cluster.topology == "bridge" else cluster.node_size


def _intra_byte_per_s(cluster: Cluster) -> float:
    """An accelerator's rate inside its node; its share of the host's path where all cards use that path."""
    if cluster.shared_host_byte_per_s is None or cluster.topology != "host":
        return cluster.intra.byte_per_s
    cards = min(cluster.node_size, cluster.num_accelerators)
    return min(cluster.intra.byte_per_s, cluster.shared_host_byte_per_s / cards)


def stacked(machines: list[Machine]) -> Machine:
    """One machine whose fields are arrays with one element per machine, for rows of different machines.

    machines: at least one. Returns fields of shape (n_machines,), peaks as a tuple of such arrays.
    """
    rates = {
        name: np.array([getattr(each, name) for each in machines], dtype=float)
        for name in Machine.__struct_fields__
        if name not in TUPLES
    }
    peaks, slowdowns = (
        tuple(np.array([getattr(each, name) for each in machines], dtype=float).T) for name in TUPLES
    )
    return Machine(peak_flop_per_s=peaks, group_slowdowns=slowdowns, **rates)
