"""Clusters of accelerators: links inside a node and between nodes, and mixtures of different accelerators.

Facts: clusters.toml, hardware.toml.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise, permutations
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from equipoise.errors import SpecError
from equipoise.spec import FactBlock, canonical, claim_name, close_names, read_blocks, shown, unknown_name
from equipoise.spec.hardware import (
    BLOCK_KINDS,
    CONFIDENCES,
    DTYPES,
    EDIT,
    NARROW_DTYPES,
    NEAR,
    TOPOLOGIES,
    Accelerator,
    Confidence,
    Dtype,
    Hardware,
    Latency,
    LinkRate,
    Topology,
    capped,
    shipped_hardware,
)
from equipoise.units import MICROSECOND_S, format_si

LinkCounts: TypeAlias = tuple[tuple[int, ...], ...]
CLUSTERS_FILE = Path(__file__).with_name("clusters.toml")
# The largest host; larger domains of fast links span several hosts (racks and pods).
LARGEST_HOST = 16


_Pair: TypeAlias = tuple[int, int]


@cache
def _link_counts(rows: tuple[str, ...]) -> LinkCounts:
    return tuple(tuple(map(int, row.split())) for row in rows)


@cache
def ring_links(links: LinkCounts, ranks: tuple[int, ...]) -> int:
    """Return the links per rank that disjoint rings through all ranks use, per direction; 0 without a ring.

    links: number between each two accelerators. ranks: at least two distinct ones.
    Assumes that a ring runs in both directions, and so uses two links per rank; two ranks use all shared
    links.
    Source: Patarasuk and Yuan 2009; NCCL, src/graph/search.cc.

    >>> triangle = ((0, 1, 1), (1, 0, 1), (1, 1, 0))
    >>> ring_links(triangle, (0, 1)), ring_links(triangle, (0, 1, 2))
    (1, 2)
    """
    first, *others = ranks
    if len(others) == 1:
        return links[first][others[0]]
    rings = []
    for order in permutations(others):
        edges = Counter((min(pair), max(pair)) for pair in pairwise((first, *order, first)))
        if order[0] < order[-1] and all(links[a][b] >= 1 for a, b in edges):
            rings.append(edges)
    left = Counter({(a, b): links[a][b] for a in ranks for b in ranks if a < b})
    most = min(sum(links[a][b] for b in ranks) for a in ranks) // 2
    return 2 * next((count for count in range(most, 0, -1) if _fits(left, rings, count)), 0)


def _fits(left: Counter[_Pair], rings: Sequence[Counter[_Pair]], count: int) -> bool:
    """Return whether `count` rings, with repetition, fit into the remaining links."""
    if not count:
        return True
    return any(
        edges <= left and _fits(left - edges, rings[place:], count - 1) for place, edges in enumerate(rings)
    )


class Link(Struct, frozen=True, kw_only=True):
    """A link per accelerator: byte/s in one direction, and the time of an empty message over one hop."""

    byte_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        """Raise SpecError for an invalid rate or latency."""
        if not self.byte_per_s > 0 or not self.latency_s >= 0:
            raise SpecError(
                f"link: byte_per_s={self.byte_per_s:g}, latency_s={self.latency_s:g}; "
                "expected a rate above zero and a latency from zero up"
            )

    @property
    def words(self) -> str:
        """Its rate and latency as text."""
        rate, latency = format_si(self.byte_per_s, "B/s"), self.latency_s / MICROSECOND_S
        return f"{rate} one way, {latency:.3g} µs per hop"


class Cluster(Struct, frozen=True, kw_only=True):
    """Accelerators of one kind with `node_size` accelerators per node.

    node_size: accelerators connected by the fast links (an NVLink domain, a TPU pod), which may span hosts.
    intra: the link inside a node, all lanes of one accelerator; in a mesh it is divided among the peers.
    inter: an accelerator's share of its node's num_nics network cards.
    shared_host_byte_per_s: total of all accelerators of a node, if their traffic passes through the host.
    switch_reduces: whether the switch inside the node performs reductions (NVLink SHARP).
    keeps_order: whether messages between nodes arrive in order (not over EFA and TCP).
    bridged: accelerators joined by one bridge if topology is bridge; others communicate through the host.
    links_between: matrix of the links between accelerators of a node, as text rows, if groups of accelerators
    differ in their rings; empty otherwise.
    oversubscription: rate into a leaf switch divided by the rate out of it. Beyond the leaf_nodes nodes of a
    leaf switch (with rails: of one rail's switch), an accelerator's inter rate is divided by it.
    num_cores: CPU cores of all hosts of a node, which decode and feed samples.
    unstated: network facts that are not known; inter then equals intra and must not be used.
    """

    accelerator: Accelerator
    num_accelerators: int
    node_size: int
    intra: Link
    inter: Link
    topology: Topology = "switch"
    switch_reduces: bool = False
    keeps_order: bool = True
    num_nics: int | None = None
    num_cores: int | None = None
    shared_host_byte_per_s: float | None = None
    bridged: int = 2
    links_between: tuple[str, ...] = ()
    oversubscription: float = 1.0
    leaf_nodes: int = 1
    unstated: tuple[str, ...] = ()
    name: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Raise SpecError for invalid sizes, topologies or links."""
        for name in ("node_size", "num_accelerators", "bridged", "leaf_nodes", "oversubscription"):
            if not getattr(self, name) >= 1:
                raise SpecError(f"cluster: {name}={getattr(self, name)}; expected at least 1")
        if self.topology not in TOPOLOGIES:
            raise SpecError(f"cluster: topology={self.topology!r}; expected {' or '.join(TOPOLOGIES)}")
        try:
            counts = _link_counts(self.links_between)
        except ValueError as err:
            raise SpecError(f"cluster: links_between={self.links_between!r}; expected whole numbers") from err
        if counts and (
            self.topology != "mesh"
            or {len(counts), *map(len, counts)} != {max(len(counts), self.node_size)}
            or counts != tuple(zip(*counts, strict=True))
        ):
            raise SpecError(
                f"cluster: links_between of {len(counts)} rows, topology={self.topology!r}; expected, with "
                f"topology mesh, at least {self.node_size} rows of as many numbers, symmetric"
            )

    def expect_network(self, num_accelerators: int) -> None:
        """Raise SpecError if this number exceeds a node and the network between nodes is not known."""
        if self.unstated and num_accelerators > self.node_size:
            raise _missing(
                self.accelerator,
                self.unstated,
                remedy=f", or ask for at most {self.node_size} accelerators, one node",
            )

    @property
    def num_nodes(self) -> int:
        """Number of nodes, of which the last may be partly used."""
        return -(-self.num_accelerators // self.node_size)

    @property
    def beyond_bridge_byte_per_s(self) -> float:
        """An accelerator's rate to others in its node that are not on its bridge; the intra rate otherwise.

        Assumes that accelerators without a common bridge communicate through their slots.
        """
        host = self.accelerator.host_byte_per_s
        if self.topology != "bridge" or self.node_size <= self.bridged or host is None:
            return self.intra.byte_per_s
        return min(host, self.intra.byte_per_s)

    def group_byte_per_s(self, size: int, stride: int) -> float:
        """Return an accelerator's rate in rings through the slowest `size` of a node that are `stride` apart.

        Assumes that accelerators without a ring communicate through the host, that groups too large for the
        node use the network, and that groups which do not divide the node are its first accelerators.
        Source: NCCL's rings, which are disjoint with one link per rank and direction (`ring_links`).
        """
        rate, num = self.intra.byte_per_s, self.node_size
        if not self.links_between or size * stride > num:
            return rate
        links = _link_counts(self.links_between)
        last = num - (size - 1) * stride if num % (size * stride) == 0 else stride
        groups = [
            tuple(range(first, first + size * stride, stride))
            for first in range(last)
            if first // stride % size == 0
        ]
        used = min(ring_links(links, group) for group in groups)
        host = self.accelerator.host_byte_per_s or rate
        return rate * used / max(map(sum, links)) if used else min(host, rate)


class NodeFacts(TypedDict, total=False):
    """Facts about a node by which a caller may override the tables."""

    node_size: int
    num_nics: int
    num_cores: int
    intra_byte_per_s: float
    intra_latency_s: float
    inter_byte_per_s: float
    inter_latency_s: float
    topology: Topology
    switch_reduces: bool
    keeps_order: bool
    shared_host_byte_per_s: float
    bridged: int
    links_between: tuple[str, ...]
    oversubscription: float
    leaf_nodes: int


_NODE_FACTS = tuple(NodeFacts.__annotations__)
_NEEDED = (
    "node_size",
    "intra_byte_per_s",
    "intra_latency_s",
    "inter_byte_per_s",
    "inter_latency_s",
    "topology",
)


class System(Struct, frozen=True, kw_only=True):
    """A kind of machine without a size: its accelerators, and facts in which its nodes differ from the usual.

    accelerators: slugs, of which the first is the default. None means as in the accelerator's usual node.
    """

    slug: str
    title: str
    accelerators: tuple[str, ...]
    source: str
    confidence: Confidence
    node_size: int | None = None
    num_nics: int | None = None
    num_cores: int | None = None
    intra_byte_per_s: LinkRate | None = None
    intra_latency_s: Latency | None = None
    inter_byte_per_s: LinkRate | None = None
    inter_latency_s: Latency | None = None
    topology: Topology | None = None
    switch_reduces: bool | None = None
    keeps_order: bool | None = None
    shared_host_byte_per_s: LinkRate | None = None
    bridged: int | None = None
    links_between: tuple[str, ...] | None = None
    oversubscription: float | None = None
    leaf_nodes: int | None = None
    aliases: tuple[str, ...] = ()


class Systems(Struct, frozen=True, kw_only=True):
    """The named systems with all their spellings. Built by `load_systems`; read-only.

    hardware: their accelerators.
    """

    by_slug: Mapping[str, System]
    names: Mapping[str, str]
    hardware: Hardware

    def find(self, name: str) -> System | None:
        """Return the system of a slug, title or alias; None if unknown."""
        slug = self.names.get(canonical(name))
        return None if slug is None else self.by_slug[slug]

    def cluster(
        self,
        name: str,
        *,
        num_accelerators: int | None = None,
        power_cap_w: float | None = None,
        **stated: Unpack[NodeFacts],
    ) -> Cluster:
        """Return a cluster of num_accelerators (by default one node); `stated` facts override the tables.

        name: a system (`dgx-h100`), or an accelerator in its usual node, or several accelerators joined by
        `+` (`rtx 3090+rtx 4090`: equal numbers, equal shares of the work), by any name that `Hardware.find`
        reads. power_cap_w: per accelerator.
        Raises SpecError with similar names and the file to edit, or with the missing facts.
        """
        found = self.find(name)
        chip = self.chip_of(name)
        if chip is None:
            complaint = f"{shown(name)} is not a known accelerator or system"
            raise unknown_name(complaint, self.near_systems(name), kind="accelerators", edit=EDIT)
        node = found or usual_system(chip, stated.get("topology"))
        whole = build_cluster(node, accelerator=chip, num_accelerators=num_accelerators, **stated)
        if power_cap_w is None:
            return whole
        return replace(whole, accelerator=capped(whole.accelerator, power_cap_w))

    def near_systems(self, name: str) -> list[str]:
        """Return up to five accelerators and systems with similar names."""
        close = [self.names[each] for each in close_names(name, self.names, cutoff=NEAR)]
        return list(dict.fromkeys((*self.hardware.near(name)[:3], *close)))[:5]

    def chip_of(self, name: str) -> Accelerator | None:
        """Return the accelerator of a name as `cluster` reads it; None if it names no accelerator or system.

        Raises SpecError with the candidates if the name is ambiguous.
        """
        system = self.find(name)
        chip = self.hardware.accelerators[system.accelerators[0]] if system else self.hardware.find(name)
        parts = () if chip is not None else tuple(map(self.hardware.find, name.split("+")))
        if len(parts) > 1 and all(parts):
            return mixture(tuple(part for part in parts if part is not None))
        return chip


def cluster(
    name: str,
    *,
    num_accelerators: int | None = None,
    power_cap_w: float | None = None,
    **stated: Unpack[NodeFacts],
) -> Cluster:
    """Return a cluster from the shipped tables; see `Systems.cluster`.

    >>> cluster("dgx-h100", num_accelerators=64).num_nodes
    8
    >>> cluster("NVIDIA A100-SXM4-80GB (400W)", num_accelerators=16, node_size=4).num_nodes
    4
    """
    known = shipped_systems()
    return known.cluster(name, num_accelerators=num_accelerators, power_cap_w=power_cap_w, **stated)


def build_cluster(
    system: System,
    *,
    accelerator: Accelerator,
    num_accelerators: int | None = None,
    **stated: Unpack[NodeFacts],
) -> Cluster:
    """Return a cluster of a system's nodes; facts are as stated, else of the system, else of the accelerator.

    accelerator: one of the system's accelerators. num_accelerators: by default one node.
    Raises SpecError naming every missing fact.
    """
    chip = accelerator
    described, system = system, replace(system, **stated)
    node = _node_of(_facts(described), _facts(usual_system(chip, system.topology)))
    node = _node_of({**dict.fromkeys(_NODE_FACTS), **stated}, node)
    size = node["node_size"]
    count = size if num_accelerators is None else num_accelerators
    unstated = tuple(field for field in ("inter_byte_per_s", "inter_latency_s") if node[field] is None)
    if (
        size is not None and count is not None and count <= size
    ):  # no traffic leaves the node: any rate will do
        node["inter_byte_per_s"] = node["inter_byte_per_s"] or node["intra_byte_per_s"]
        node["inter_latency_s"] = node["inter_latency_s"] or node["intra_latency_s"]
    if size == 1 and count == 1:  # no communication at all, so any rate is valid
        node["inter_byte_per_s"] = node["inter_byte_per_s"] or chip.memory_byte_per_s
        node["inter_latency_s"] = node["inter_latency_s"] or node["intra_latency_s"] or 0.0
    if size == 1:  # no traffic stays in the node
        node["intra_byte_per_s"] = node["intra_byte_per_s"] or node["inter_byte_per_s"]
        node["intra_latency_s"] = node["intra_latency_s"] or node["inter_latency_s"]
        node["topology"] = node["topology"] or "host"
    missing = [field for field in _NEEDED if node[field] is None]
    if missing:
        raise _missing(chip, missing)
    intra = Link(byte_per_s=node["intra_byte_per_s"], latency_s=node["intra_latency_s"])
    inter = Link(byte_per_s=node["inter_byte_per_s"], latency_s=node["inter_latency_s"])
    return Cluster(
        accelerator=chip,
        num_accelerators=count,
        node_size=size,
        intra=intra,
        inter=inter,
        topology=node["topology"],
        switch_reduces=bool(node["switch_reduces"]),
        keeps_order=node["keeps_order"] is not False,
        num_nics=node["num_nics"],
        num_cores=node["num_cores"],
        shared_host_byte_per_s=node["shared_host_byte_per_s"],
        bridged=2 if node["bridged"] is None else node["bridged"],
        links_between=_kept_links(node["links_between"], node),
        oversubscription=node["oversubscription"] or 1.0,
        leaf_nodes=node["leaf_nodes"] or 1,
        unstated=unstated,
        name=system.slug,
        source=system.source,
    )


def _facts(system: System) -> dict[str, Any]:
    return {field: getattr(system, field) for field in _NODE_FACTS}


def _node_of(stated: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a node, as stated or else as usual, with the accelerators' shares of network cards.

    If the usual node has one card per accelerator, so does a node of another size. Otherwise it has the usual
    number of cards, at most one per accelerator.
    """
    node = {field: usual[field] if value is None else value for field, value in stated.items()}
    size, usual_size, num_nics = node["node_size"], usual["node_size"], usual["num_nics"]
    if size == usual_size or None in {size, usual_size, num_nics} or stated["inter_byte_per_s"] is not None:
        return node
    num_cards = stated["num_nics"] or (size if num_nics == usual_size else min(num_nics, size))
    node["num_nics"] = num_cards
    if usual["inter_byte_per_s"] is not None and num_cards * usual_size != num_nics * size:
        node["inter_byte_per_s"] = usual["inter_byte_per_s"] * usual_size * num_cards / (num_nics * size)
    return node


def _missing(chip: Accelerator, facts: Sequence[str], *, remedy: str = "") -> SpecError:
    """Return the error that names the missing facts of an accelerator's node."""
    return SpecError(
        f"cluster of {chip.slug}: {', '.join(facts)} missing; add to [accelerator.{chip.slug}] in {EDIT} "
        "(there intra_byte_per_s is link_byte_per_s, or host_byte_per_s where topology is host)",
        remedy=remedy,
    )


def _kept_links(rows: tuple[str, ...] | None, node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the links of a system; empty if the node has another topology or more accelerators."""
    if rows is None or node["topology"] != "mesh" or node["node_size"] > len(rows):
        return ()
    return rows


def usual_system(chip: Accelerator, topology: Topology | None) -> System:
    """Return an accelerator's usual node; its intra rate is that of the host or bridge if these connect it.

    topology: overrides the usual topology.
    """
    joins = topology or chip.topology
    rates = {"host": chip.host_byte_per_s, "bridge": chip.bridge_byte_per_s or chip.link_byte_per_s}
    return System(
        slug=chip.slug,
        title=f"usual node of {chip.title}",
        accelerators=(chip.slug,),
        source=chip.node_source or chip.source,
        confidence=chip.confidence,
        node_size=chip.node_size,
        num_nics=chip.num_nics,
        intra_byte_per_s=rates.get(joins or "switch", chip.link_byte_per_s),
        intra_latency_s=chip.intra_latency_s,
        inter_byte_per_s=chip.inter_byte_per_s,
        inter_latency_s=chip.inter_latency_s,
        topology=joins,
        switch_reduces=chip.switch_reduces,
        keeps_order=chip.keeps_order,
    )


_MIXTURE_RATES = (
    "memory_byte_per_s",
    *(f"peak_{dtype}_flop_per_s" for dtype in DTYPES),
    *(f"achieved_{dtype}_flop_per_s" for dtype in ("bf16", "fp16", "fp32")),
    "link_byte_per_s",
    "host_byte_per_s",
    "bridge_byte_per_s",
    "inter_byte_per_s",
)
_MIXTURE_COUNTS = ("memory_bytes", "node_size", "num_nics")
_LATENCIES = ("intra_latency_s", "inter_latency_s")


def mixture(chips: tuple[Accelerator, ...]) -> Accelerator:
    """Return one accelerator that represents equal numbers of several: minimum rates and sizes, mean power.

    Its achievable fractions give the minimum rate that any of them reaches.

    Assumes equal shares of the work, so that the slowest determines the speed; a fact that one does not state
    is unknown.
    Source: definition of synchronous training.
    """
    if len({chip.slug for chip in chips}) == 1:
        return chips[0]
    facts: dict[str, object] = {}
    for names, least in ((_MIXTURE_RATES, min), (_MIXTURE_COUNTS, min), (_LATENCIES, max)):
        facts |= {name: _of_all(chips, name, least) for name in names}
    hosted = any(chip.topology == "host" for chip in chips)
    title = " + ".join(chip.title for chip in chips)
    return Accelerator(
        slug="+".join(chip.slug for chip in chips),
        title=title,
        vendor=" + ".join(dict.fromkeys(chip.vendor for chip in chips)),
        kind=chips[0].kind,
        source=f"the lowest of each value of {title}",
        confidence=max((chip.confidence for chip in chips), key=CONFIDENCES.index),
        power_w=_of_all(chips, "power_w", fmean),
        topology="host" if hosted else chips[0].topology,
        switch_reduces=all(chip.switch_reduces for chip in chips),
        keeps_order=all(chip.keeps_order is not False for chip in chips),
        for_desktops=all(chip.for_desktops for chip in chips),
        shares_host_memory=any(chip.shares_host_memory for chip in chips),
        usable_memory_fraction=min(chip.usable_memory_fraction or 1.0 for chip in chips),
        asynchronous_products=min(chip.asynchronous_products or 0 for chip in chips),
        grace_host=any(chip.grace_host for chip in chips),
        lacks_compiler=any(chip.lacks_compiler for chip in chips),
        node_source=chips[0].node_source,
        ordered_fraction=_share_of_least(chips, "achievable_fraction", NARROW_DTYPES),
        ordered_fp32_fraction=_share_of_least(chips, "achievable_fp32_fraction", ("fp32",)),
        **facts,  # type: ignore[arg-type]  # numbers, by name
    )


def _share_of_least(chips: tuple[Accelerator, ...], share: str, dtypes: tuple[Dtype, ...]) -> float:
    """Return the lowest achievable rate of several accelerators, as a fraction of their lowest peak.

    It is the minimum over the types that all of them state, or their lowest fraction if there is no such
    type.
    """
    shares: list[float] = [getattr(chip, share) for chip in chips]
    stated = [[rate for chip in chips if (rate := chip.peak_flop_per_s(each))] for each in dtypes]
    common = [peaks for peaks in stated if len(peaks) == len(chips)]
    return min((min(map(mul, each, shares)) / min(each) for each in common), default=min(shares))


def _of_all(
    chips: tuple[Accelerator, ...], name: str, combine: Callable[[Iterable[float]], float]
) -> float | None:
    """Return a combined fact of several accelerators; None if one of them does not state it."""
    stated = [getattr(chip, name) for chip in chips]
    return None if None in stated else combine(stated)


@cache
def shipped_systems() -> Systems:
    """Return the shipped table."""
    return load_systems((), shipped_hardware())


def load_systems(extra: Sequence[Path], known: Hardware) -> Systems:
    """Return the shipped table combined with the given files, which override fields and names.

    known: the accelerators that systems may have.
    Raises SpecError with file and line if a file is invalid.
    """
    table: dict[str, System] = {}
    names: dict[str, str] = {}
    for path in (CLUSTERS_FILE, *extra):
        owners: dict[str, str] = {}
        for block in read_blocks(path, BLOCK_KINDS):
            if block.kind != "cluster":
                continue
            found = _system(block, table.get(block.slug), known)
            table[found.slug] = found
            for spelling in (found.slug, found.title, *block.texts("aliases")):
                names[claim_name(block, spelling, found.slug, owners)] = found.slug
    return Systems(by_slug=table, names=names, hardware=known)


def _system(block: FactBlock, known: System | None, chips: Hardware) -> System:
    """Return the system that a block describes; missing fields are taken from an earlier file."""
    found = block.read(System, known, given={"slug": block.slug})
    return replace(found, accelerators=tuple(chips.accelerator(name).slug for name in found.accelerators))
