"""What a topology is: devices, network cards, the class of link of every pair, and islands of good links."""

from collections.abc import Iterator
from itertools import combinations

from msgspec import Struct

from equipoise.spec.links import FABRICS, kind, most_links, number, rank


class Device(Struct, frozen=True, kw_only=True):
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


class Nic(Struct, frozen=True, kw_only=True):
    """One network card. title: the name the system knows it by. byte_per_s: one direction, where known."""

    name: str
    title: str | None = None
    byte_per_s: float | None = None


class DeviceLink(Struct, frozen=True, kw_only=True):
    """The link between two devices or cards; no link_class where the text has none or contradicts itself.

    conflict: class by the row of `a`, and by the row of `b`, where these differ. peers: whether each reaches
    the other's memory itself, in the words of `nvidia-smi topo -p2p`. weight, hops: as rocm-smi has them.
    """

    a: str
    b: str
    link_class: str | None
    conflict: tuple[str, str] | None = None
    peers: str | None = None
    weight: int | None = None
    hops: int | None = None


class MissingRow(Struct, frozen=True, kw_only=True):
    """A row that the heads of columns promise and the text does not hold whole; num_cells of it were read."""

    name: str
    num_cells: int
    num_expected: int


class Topology(Struct, frozen=True, kw_only=True):
    """Devices and cards of one machine; `links` has every pair of them, in order.

    origin: where it was read: the tools, or this machine. notes: what the reader could not use, in sentences.
    """

    origin: str
    devices: tuple[Device, ...]
    nics: tuple[Nic, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    missing_rows: tuple[MissingRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def between_devices(self) -> tuple[DeviceLink, ...]:
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
            counts = [
                number(link.link_class)
                for link in self.between_devices
                if device.name in (link.a, link.b) and link.link_class and kind(link.link_class) == "NV"
            ]
            if sum(counts) > most_links():
                return True
        return False


def pairs(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Every pair of names once, in their order."""
    return tuple(combinations(names, 2))


# A search for groups gives up after so many steps; real machines take a few hundred.
_MOST_STEPS = 50_000


class Islands(Struct, frozen=True, kw_only=True):
    """Devices connected without what is slowest here. unplaced: those whose island is not known."""

    members: tuple[tuple[str, ...], ...]
    unplaced: tuple[str, ...]


class BestGroup(Struct, frozen=True, kw_only=True):
    """The group of so many devices whose weakest link is the best there is.

    link_class: of that weakest link. worst_class: the weakest of all links; None where some are
    unknown.
    """

    num_devices: int
    devices: tuple[str, ...]
    link_class: str
    worst_class: str | None


def islands(topology: Topology) -> Islands:
    """Devices connected by NVLink or XGMI, where any are; else without crossing from socket to socket.

    Assumes links that are unknown may be of any class.
    """
    known = topology.classes
    names = tuple(device.name for device in topology.devices)
    joined = {pair for pair, name in known.items() if kind(name) in FABRICS and pair <= {*names}}
    good = joined or {pair for pair, name in known.items() if kind(name) != "SYS"}
    members = tuple(_components(names, good))
    of = {name: group for group in members for name in group}
    unknown = [pair for pair in pairs(names) if frozenset(pair) not in known and of[pair[0]] != of[pair[1]]]
    open_groups = {of[name] for pair in unknown for name in pair}
    return Islands(
        members=tuple(group for group in members if group not in open_groups),
        unplaced=tuple(name for name in names if of[name] in open_groups),
    )


def _components(names: tuple[str, ...], connected: set[frozenset[str]]) -> Iterator[tuple[str, ...]]:
    """Sets of names that are connected, each in the order of the names."""
    rest = dict.fromkeys(names)
    while rest:
        reached, front = set[str](), [next(iter(rest))]
        while front:
            here = front.pop()
            reached.add(here)
            front += [name for name in rest if name not in reached and frozenset((here, name)) in connected]
        yield tuple(name for name in names if name in reached)
        for name in reached:
            rest.pop(name, None)


def best_groups(topology: Topology) -> tuple[BestGroup, ...]:
    """For 2, 4, 8 ... and all devices, the group with the best weakest link, and the worst of any other.

    Sizes for which no group has all its links known, or that a bounded search does not settle, are left out.
    """
    names = tuple(device.name for device in topology.devices)
    known = {pair: name for pair, name in topology.classes.items() if pair <= set(names)}
    if not known:
        return ()
    sizes = sorted(
        {2**power for power in range(1, len(names).bit_length()) if 2**power <= len(names)} | {len(names)}
    )
    classes = sorted(set(known.values()), key=rank)
    is_complete = len(known) == len(pairs(names))
    found = []
    for size in sizes:
        best = _best(names, known, classes, size)
        if best is not None:
            found.append(
                BestGroup(
                    num_devices=size,
                    devices=best[0],
                    link_class=best[1],
                    worst_class=classes[-1] if is_complete else None,
                )
            )
    return tuple(found)


def _best(
    names: tuple[str, ...], known: dict[frozenset[str], str], classes: list[str], size: int
) -> tuple[tuple[str, ...], str] | None:
    for worst in classes:
        allowed = {pair for pair, name in known.items() if rank(name) <= rank(worst)}
        group = _clique(names, allowed, size)
        if group is not None:
            return group, worst
    return None


def _clique(names: tuple[str, ...], connected: set[frozenset[str]], size: int) -> tuple[str, ...] | None:
    """So many names, every two connected; None where there are none, or the search is too long."""
    near = {name: {other for other in names if frozenset((name, other)) in connected} for name in names}
    steps = [0]

    def extended(group: tuple[str, ...], rest: list[str]) -> tuple[str, ...] | None:
        if len(group) == size:
            return group
        for place, name in enumerate(rest):
            steps[0] += 1
            if len(group) + len(rest) - place < size or steps[0] > _MOST_STEPS:
                return None
            found = extended((*group, name), [other for other in rest[place + 1 :] if other in near[name]])
            if found is not None:
                return found
        return None

    return extended((), list(names))
