"""What a topology is: devices, network cards, and the class of link of every pair, known or not."""

from dataclasses import dataclass
from itertools import combinations

from equipoise.spec.link_class import FABRICS, kind, most_links, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one processor socket of a machine without any.

    title: what the tool calls it; None where the text does not say. kind: gpu or cpu. cpu_affinity,
    numa_affinity: lists as the tool prints them. numa_id: of the accelerator's own memory. slices: profiles
    of its MIG slices. slot_byte_per_s: of its PCIe slot, one direction.
    """

    name: str
    kind: str = "gpu"
    title: str | None = None
    cpu_affinity: str | None = None
    numa_affinity: str | None = None
    numa_id: str | None = None
    slices: tuple[str, ...] = ()
    slot_byte_per_s: float | None = None
    num_cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One network card. title: the name the system knows it by. byte_per_s: one direction, where known."""

    name: str
    title: str | None = None
    byte_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins two of the devices and cards; no link_class where the text is silent or contradicts itself.

    said: class by the row of `a`, and by the row of `b`, where the two disagree. peers: whether each reaches
    the other's memory itself, in the words of `nvidia-smi topo -p2p`. weight, hops: as rocm-smi has them.
    """

    a: str
    b: str
    link_class: str | None
    said: tuple[str, str] | None = None
    peers: str | None = None
    weight: int | None = None
    hops: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRow:
    """A row that the heads of columns promise and the text does not hold whole; num_cells of it were read."""

    name: str
    num_cells: int
    num_expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Devices and cards of one machine; `links` has every pair of them, in order.

    origin: where it was read: the tools, or this machine. notes: what the reader could not use, in sentences.
    """

    origin: str
    devices: tuple[Device, ...]
    nics: tuple[Nic, ...] = ()
    links: tuple[Link, ...] = ()
    missing_rows: tuple[MissingRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def between_devices(self) -> tuple[Link, ...]:
        """The links whose both ends are devices."""
        names = {device.name for device in self.devices}
        return tuple(link for link in self.links if link.a in names and link.b in names)

    @property
    def classes(self) -> dict[frozenset[str], str]:
        """The class of every pair where it is known."""
        return {
            frozenset((link.a, link.b)): link.link_class for link in self.links if link.link_class is not None
        }

    @property
    def is_switched(self) -> bool:
        """Whether NVLinks go through a switch: then each pair may have all of its accelerators' links.

        Assumes what no accelerator has enough links for goes through a switch.
        """
        for device in self.devices:
            own = [
                number(link.link_class)
                for link in self.between_devices
                if device.name in (link.a, link.b) and link.link_class and kind(link.link_class) == "NV"
            ]
            if sum(own) > most_links():
                return True
        return False

    @property
    def has_fabric(self) -> bool:
        """Whether any two devices are joined by NVLink or XGMI."""
        return any(link.link_class and kind(link.link_class) in FABRICS for link in self.between_devices)


def pairs(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Every pair of names once, in their order."""
    return tuple(combinations(names, 2))
