"""The links that a run of timed collectives was over: which machine it was on, and what they should carry."""

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.collectives import CollectiveRun
from equipoise.errors import SpecError, UsageError
from equipoise.perfmodel.machine import Group, Wires, machine
from equipoise.spec.catalogue import Catalogue, shipped
from equipoise.spec.cluster import Cluster, build_cluster, usual_system
from equipoise.spec.cluster_text import cluster_in_text
from equipoise.spec.links import FABRICS, KINDS, LinkReach, kind, link_class, network_reach, reach

if TYPE_CHECKING:
    from equipoise.spec.hardware import Accelerator, Topology

# Domains of the fast links that are larger span hosts: racks and pods.
LARGEST_HOST = 16


def is_like(one: str, other: str) -> bool:
    """Whether two accelerators have the same links: of one chip and form, whatever its memory.

    >>> is_like("a100-sxm4-40gb", "a100-sxm4-80gb")
    True
    """
    return one.rpartition("-")[0] == other.rpartition("-")[0]


class RunLinks(Struct, frozen=True, kw_only=True):
    """The links of a run's ranks.

    link: in words. bus_byte_per_s: the most that busbw could be with rings: of the link inside a node, or of
    the network cards of a node together. card_byte_per_s: of one accelerator's share of them.
    """

    cluster: Cluster
    group: Group
    wires: Wires
    link: str
    bus_byte_per_s: float
    card_byte_per_s: float

    @property
    def num_nodes(self) -> int:
        """Nodes that the ranks are on."""
        return round(float(self.group.num_nodes))

    @property
    def ring_wires(self) -> Wires:
        """The same links if their switch did not reduce."""
        return replace(self.wires, switch_reduces=0.0)

    @property
    def host_byte_per_s(self) -> float | None:
        """Between an accelerator and its host."""
        return self.cluster.accelerator.host_byte_per_s

    def is_like(self, accelerator: str, link: str) -> bool:
        """Whether a published figure of an accelerator and class of link is of such a machine."""
        is_chip = is_like(accelerator, self.cluster.accelerator.slug)
        return is_chip and _over_host(link) == (self.cluster.topology == "host")


def checked_link(word: str) -> str:
    """A class of link as `nvidia-smi topo -m` names it, or the rate of a network. Raises UsageError else.

    >>> checked_link("phb"), checked_link("nv12"), checked_link("10Gbit")
    ('PHB', 'NV12', '10gbit')
    """
    named = word.strip().lower() if network_reach(word) else link_class(word)
    if named is None:
        raise UsageError(
            f"--link {word[:40]!r}: unknown class of link; expected one of NV#, "
            f"{', '.join(KINDS[1:])}, or the "
            "rate of a network such as 10gbit"
        )
    return named


def run_links(
    run: CollectiveRun, *, accelerator: str | None, link: str | None, catalogue: Catalogue | None = None
) -> RunLinks | str:
    """The links of a run; where it is not known, one sentence on what to give.

    accelerator: of the catalogue or a system; the device that the run names unless given. link: a class.
    catalogue: the shipped one unless given.
    Raises SpecError for an accelerator that was given and is not known.
    """
    tables = catalogue or shipped()
    if run.backend == "gloo":
        return _over_gloo(run, link)
    if link is not None and network_reach(link) is not None:
        link = None  # inside a node, ranks are connected as is usual there
    if accelerator is not None:
        return _machine(run, tables.cluster(accelerator, num_accelerators=run.num_ranks), link)
    if run.device is None:
        return "the file does not name the accelerator: give --accelerator NAME or --link CLASS"
    try:
        known = tables.accelerator_alias(run.device)
        found = (
            tables.cluster(known.slug, num_accelerators=run.num_ranks)
            if known is not None
            else cluster_in_text(run.device, num_accelerators=run.num_ranks, catalogue=tables)
        )
        if found is not None:
            return _machine(run, found, link)
    except SpecError as err:
        return str(err)
    return f"the accelerator {run.device[:60]!r} is not known: give --accelerator NAME or --link CLASS"


def _over_gloo(run: CollectiveRun, link: str | None) -> str:
    """Why nothing is known of the machine of a run over gloo."""
    if run.num_nodes == 1:
        return "gloo between processes of one host uses its processors and memory: no link to compare with"
    if link is None:
        return "gloo over a network of unknown rate: give --link, e.g. 10gbit"
    return "no published values for gloo"


def reach_of(run: CollectiveRun, found: RunLinks | str, link: str | None) -> LinkReach | None:
    """What the class of link that was stated reaches, where that is more exact than the machine.

    So it is for ranks of one node that are connected through the host, or whose accelerator is not known, and
    for hosts connected by a network of a stated rate.
    """
    chip: Accelerator | None = None
    network = None if link is None else network_reach(link)
    if network is not None:
        return network if run.num_nodes != 1 else None
    if link is None or (run.num_nodes or 1) > 1:
        return None
    if isinstance(found, RunLinks):
        if found.num_nodes > 1 or not _over_host(link):
            return None
        chip = found.cluster.accelerator
    return reach(link, chip)


def _over_host(link: str) -> bool:
    return network_reach(link) is None and kind(link) not in FABRICS


def _machine(run: CollectiveRun, usual: Cluster, link: str | None) -> RunLinks:
    found = _with_link(usual, link)
    num_nodes = -(-run.num_ranks // found.node_size)
    if run.num_nodes is not None and found.node_size <= LARGEST_HOST:
        num_nodes = max(num_nodes, run.num_nodes)
    nodes = machine(found)
    per_node = run.num_ranks / num_nodes
    slower = nodes.bridge_slowdown if per_node > nodes.bridged_ranks else 1.0
    group = Group(ranks_per_node=per_node, num_nodes=float(num_nodes), intra_slowdown=slower)
    wires = nodes.wires
    inside, card = float(wires.intra.byte_per_s / slower), float(wires.inter.byte_per_s)
    return RunLinks(
        cluster=found,
        group=group,
        wires=wires,
        link=_within(found, link) if num_nodes == 1 else f"the network of {num_nodes} nodes",
        bus_byte_per_s=inside if num_nodes == 1 else card * float(group.ranks_per_node),
        card_byte_per_s=card,
    )


def _with_link(usual: Cluster, link: str | None) -> Cluster:
    """The cluster with its accelerators connected as the class of link means, where that is not the usual."""
    chip = usual.accelerator
    topology: Topology | None = None
    if link is not None and _over_host(link) and usual.topology != "host":
        topology = "host"
    elif link is not None and not _over_host(link) and usual.topology == "host" and chip.bridge_byte_per_s:
        topology = "bridge"
    if topology is None:
        return usual
    return build_cluster(
        usual_system(chip, topology),
        accelerator=chip,
        num_accelerators=usual.num_accelerators,
        node_size=usual.node_size,
        topology=topology,
    )


def _within(found: Cluster, link: str | None) -> str:
    """What joins accelerators inside a node, in words."""
    if found.topology == "host":
        return f"PCIe through the host ({link})" if link else "PCIe through the host"
    return found.accelerator.link or "the link"
