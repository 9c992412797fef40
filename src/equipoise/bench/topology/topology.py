"""A machine's topology: devices, network cards, link classes of all pairs, and islands of fast links."""

from collections.abc import Iterator
from itertools import combinations

from msgspec import Struct

from equipoise.spec.links import FABRICS, kind, most_links, number, rank


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator, or one processor socket of a machine without accelerators.

    title: the product name that the tool prints, if any. kind: gpu or cpu. cpu_affinity, numa_affinity: lists
    as the tool prints them. numa_id: of the accelerator's own memory. slices: profiles of its MIG slices.
    slot_byte_per_s: of its PCIe slot, one direction.
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
    """One network card. title: its name in the system. byte_per_s: one direction; None if not known."""

    name: str
    title: str | None = None
    byte_per_s: float | None = None


class DeviceLink(Struct, frozen=True, kw_only=True):
    """The link between two devices or cards. link_class is None if the text lacks or contradicts it.

    conflict: the classes in the rows of `a` and `b`, if they differ. peers: whether each can access the
    other's memory directly, in the words of `nvidia-smi topo -p2p`. weight, hops: as rocm-smi prints them.
    """

    a: str
    b: str
    link_class: str | None
    conflict: tuple[str, str] | None = None
    peers: str | None = None
    weight: int | None = None
    hops: int | None = None


class MissingRow(Struct, frozen=True, kw_only=True):
    """A missing or incomplete row, according to the column headers. num_cells: cells that were read."""

    name: str
    num_cells: int
    num_expected: int


class Topology(Struct, frozen=True, kw_only=True):
    """Devices and cards of one machine; `links` has every pair of them, in order.

    origin: the tools or machine it was read from. notes: sentences on what could not be used.
    """

    origin: str
    devices: tuple[Device, ...]
    nics: tuple[Nic, ...] = ()
    links: tuple[DeviceLink, ...] = ()
    missing_rows: tuple[MissingRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def between_devices(self) -> tuple[DeviceLink, ...]:
        """The links between two devices."""
        names = {device.name for device in self.devices}
        return tuple(link for link in self.links if link.a in names and link.b in names)

    @property
    def classes(self) -> dict[frozenset[str], str]:
        """The known link classes by pair."""
        return {
            frozenset((link.a, link.b)): link.link_class for link in self.links if link.link_class is not None
        }

    @property
    def is_switched(self) -> bool:
        """Return whether NVLinks go through a switch; each pair may then use all links of its accelerators.

        Assumes a switch if the links of an accelerator's pairs add up to more than any accelerator has.
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
    """Return every pair of names once, in order."""
    return tuple(combinations(names, 2))


# The limit of steps in a search for a group; real machines take a few hundred.
_MAX_SEARCH_STEPS = 50_000


class Islands(Struct, frozen=True, kw_only=True):
    """Groups of devices connected by fast links. unplaced: devices whose group is not known."""

    members: tuple[tuple[str, ...], ...]
    unplaced: tuple[str, ...]


class BestGroup(Struct, frozen=True, kw_only=True):
    """The group of num_devices devices with the best weakest link.

    link_class: of its weakest link. worst_class: the weakest link of all devices; None if some are unknown.
    """

    num_devices: int
    devices: tuple[str, ...]
    link_class: str
    worst_class: str | None


def islands(topology: Topology) -> Islands:
    """Return groups of devices connected by NVLink or XGMI if there are any, else by links within a socket.

    Assumes that an unknown link may be of any class.
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
    """Yield the connected components, each in the order of `names`."""
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
    """Return the group with the best weakest link for 2, 4, 8, ... and all devices.

    A size is omitted if no group of it has only known links, or if the bounded search finds none.
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
    """Return a clique of this size; None if there is none or the search exceeds its limit."""
    near = {name: {other for other in names if frozenset((name, other)) in connected} for name in names}
    steps = [0]

    def extended(group: tuple[str, ...], rest: list[str]) -> tuple[str, ...] | None:
        if len(group) == size:
            return group
        for place, name in enumerate(rest):
            steps[0] += 1
            if len(group) + len(rest) - place < size or steps[0] > _MAX_SEARCH_STEPS:
                return None
            found = extended((*group, name), [other for other in rest[place + 1 :] if other in near[name]])
            if found is not None:
                return found
        return None

    return extended((), list(names))
