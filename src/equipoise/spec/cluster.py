"""What joins accelerators: links inside a node, links between nodes, and how many a node holds."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from equipoise.errors import SpecError
from equipoise.spec.hardware import Accelerator

Topology: TypeAlias = Literal["switch", "mesh", "ring", "torus", "bridge", "host"]
# switch: every pair at full rate (NVSwitch); mesh: a link to each peer; ring, torus: neighbours only;
# bridge: pairs joined, others through the host; host: everything through PCIe and the host bridge.
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link as one accelerator sees it: byte/s in one direction, and the time an empty message takes."""

    byte_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        """Refuse links that carry nothing."""
        if not self.byte_per_s > 0 or not self.latency_s >= 0:
            raise SpecError(
                f"link: byte_per_s={self.byte_per_s:g}, latency_s={self.latency_s:g}; "
                "expected a rate above zero and a latency from zero up"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """So many accelerators of one kind, `node_size` to a node.

    intra: the link inside a node. inter: an accelerator's share of its node's network cards.
    """

    accelerator: Accelerator
    num_accelerators: int
    node_size: int
    intra: Link
    inter: Link
    topology: Topology = "switch"
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse clusters without accelerators."""
        for name in ("num_accelerators", "node_size"):
            if getattr(self, name) < 1:
                raise SpecError(f"cluster: {name}={getattr(self, name)}; expected at least 1")
        if self.topology not in TOPOLOGIES:
            raise SpecError(f"cluster: topology={self.topology!r}; expected {' or '.join(TOPOLOGIES)}")

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.num_accelerators // self.node_size)
