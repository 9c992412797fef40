"""The systems of a question: those named, the machine at hand, or accelerators for rent."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeGuard

from msgspec import Struct, field
from msgspec.structs import replace

from equipoise import economics
from equipoise.decide.question.field import MAX_ACCELERATORS
from equipoise.decide.question.query import USUAL_MOST, TrainingQuery
from equipoise.economics import Price, Rates
from equipoise.economics.quotes import read_quotes
from equipoise.errors import DataError, EvidenceError, SpecError, UnknownNameError, UsageError
from equipoise.files import read_input
from equipoise.spec.catalogue import Catalogue, counted_name, shipped
from equipoise.spec.cluster import Cluster, LinkCounts, NodeFacts, ring_links
from equipoise.spec.hardware import Accelerator, PriceTerms
from equipoise.spec.links import FABRICS, kind, most_links, num_links, number, rank, reach
from equipoise.units import HOUR_S, plural

if TYPE_CHECKING:
    from equipoise.bench.topology.topology import Topology

_CPU = "cpu"
_MAX_SYSTEMS = 24
_MOST_NAMED = 3
_MAX_IN_HOST = 8  # cards that one host takes
_MAX_IN_RINGS = 8  # accelerators of a group for which the performance model finds rings
# Default size limit of a fine-tuning that names no system, and of cards for desktop computers: as many as one
# host takes.
SMALL_SYSTEM = 8
# Twice the largest training published with size and hours, 16,384 accelerators (Llama team 2024,
# arXiv:2407.21783).
LARGE_SYSTEM = 32_768
# FLOP/s of one accelerator where its kind must not matter: 40 % of 1e15, the bf16 peak of an H100.
_ACCELERATOR_FLOP_PER_S = 4e14

_JOINT = "+"


class RequestedSystem(Struct, frozen=True, kw_only=True):
    """A system to choose from, with the facts that the question states.

    name: in the catalogue; the machine's own name if cluster is None. cluster: one of its nodes.
    node: facts stated by the question or the machine's own links. stock: number available; None if unlimited.
    is_cpu: whether it has only CPUs, whose cores the ranks use. terms: to compare.
    usd_per_accelerator_hour: the user's own price; None for that of the table. quotes: from the user's file,
    used if no such price is stated.
    chosen_for_you: choices made where the question leaves its nodes open, in words. topology: of a node, if
    its links were read. uncapped_power_w: power of an accelerator without the stated power limit; None if no
    limit is stated.
    """

    name: str
    title: str
    cluster: Cluster | None
    node: NodeFacts = field(default_factory=NodeFacts)
    stock: int | None = None
    is_cpu: bool = False
    terms: tuple[PriceTerms, ...] = ("on_demand",)
    usd_per_accelerator_hour: float | None = None
    quotes: tuple[Price, ...] = ()
    notes: tuple[str, ...] = ()
    chosen_for_you: tuple[str, ...] = ()
    topology: "Topology | None" = None
    uncapped_power_w: float | None = None

    @property
    def is_desktop(self) -> bool:
        """Whether its cards are sold for desktop computers, which are not built into clusters."""
        return self.cluster is not None and bool(self.cluster.accelerator.for_desktops)

    @property
    def accelerator(self) -> str:
        """Slug of its accelerator, or the name of the machine."""
        return self.name if self.cluster is None else self.cluster.accelerator.slug


def requested_systems(
    query: TrainingQuery, catalogue: Catalogue, *, topology: "Topology | None" = None
) -> tuple[RequestedSystem, ...]:
    """The systems of a question, in the order named.

    topology: of this machine, in place of detecting it. Raises SpecError for unknown names, UsageError for
    prices, terms and stocks of systems that are not in the question, EvidenceError if this machine's
    accelerators are not in the catalogue.
    """
    found = _systems_of(query, catalogue, topology)
    if len(found) > _MAX_SYSTEMS:
        raise UsageError(f"--accelerator names {len(found)} systems; expected at most {_MAX_SYSTEMS}")
    twice = [name for name, count in Counter(each.name for each in found).items() if count > 1]
    if twice:
        raise UsageError(f"--accelerator names {twice[0]} twice; name each system once")
    names = [each.name for each in found]
    prices = _by_system("price", query.price, names, catalogue, is_shared=False)
    terms = _by_system("terms", query.terms, names, catalogue, is_shared=True)
    stocks = _by_system("stock", query.stock, names, catalogue, is_shared=False)
    quoted = {} if query.quotes is None else _quoted(query.quotes, found, catalogue)
    stocked = [replace(each, stock=stocks.get(each.name, each.stock)) for each in found]
    asked = tuple(
        replace(
            each,
            chosen_for_you=(*_desktop_limit_words(query, each), *each.chosen_for_you),
            usd_per_accelerator_hour=prices.get(each.name),
            quotes=quoted.get(each.name, ()),
            terms=terms.get(each.name)
            # A stated price applies to any terms.
            or tuple(dict.fromkeys(one.terms for one in quoted.get(each.name, ()) if each.name not in prices))
            or each.terms,
        )
        for each in stocked
    )
    if query.on_reclaim == "shrink" and not any("spot" in each.terms for each in asked):
        raise UsageError(
            "--on-reclaim shrink applies only to spot capacity: add --terms spot, or leave it out"
        )
    return asked


def _systems_of(
    query: TrainingQuery, catalogue: Catalogue, topology: "Topology | None"
) -> tuple[RequestedSystem, ...]:
    """The machine at hand, the systems named, or those for rent if the question leaves them open."""
    if query.here:
        if _network_facts(query):
            raise UsageError(
                "--oversubscription describes a network between nodes, and --here is one node: leave one of "
                "them out"
            )
        from equipoise.bench.topology import here  # noqa: PLC0415 - only where this machine is asked about

        return (_system_at_hand(topology or here(), catalogue),)
    if query.systems:
        return _all_named(query, catalogue)
    if not query.compares_rentable:
        raise UsageError(
            "no accelerator is given: use --accelerator NAME (see `equipoise list accelerators`)",
            remedy=", or --here to ask about this machine",
        )
    found = [_named(each.slug, query, catalogue) for each in rentable(catalogue)]
    kept = "that no other of their vendor matches at the price"
    words = [f"{len(found)} GPUs for rent {kept} (--accelerator)"]
    if query.max_accelerators is None and query.sizes is None:
        words.append(f"at most {SMALL_SYSTEM} (--max-accelerators)")
    return tuple(replace(each, chosen_for_you=(*words, *each.chosen_for_you)) for each in found)


def usual_most(query: TrainingQuery, system: RequestedSystem, flop: float | None) -> int:
    """The largest size tried by default, if neither the question nor a stock limits it.

    flop: of the whole training, if its amount is stated; None for the published target. USUAL_MOST, or if
    more the power of two that takes at least a week; the same for any kind of accelerator, so that systems
    are compared at the same sizes.
    """
    if query.compares_rentable or system.is_desktop:
        return SMALL_SYSTEM
    in_a_week = (flop or 0.0) / (_ACCELERATOR_FLOP_PER_S * 7 * 24 * HOUR_S)
    if in_a_week <= USUAL_MOST:
        return USUAL_MOST
    return min(1 << math.floor(math.log2(in_a_week)), LARGE_SYSTEM)


def usual_sizes(system: RequestedSystem) -> tuple[int, ...]:
    """The usual sizes of a system whatever is asked: powers of two."""
    most = SMALL_SYSTEM if system.is_desktop else USUAL_MOST
    return tuple(1 << each for each in range(most.bit_length()))


def _desktop_limit_words(query: TrainingQuery, system: RequestedSystem) -> tuple[str, ...]:
    """Words on the default limit for cards for desktop computers; empty if a size is stated."""
    is_stated = query.max_accelerators or query.sizes or query.num_nodes or system.stock is not None
    if query.compares_rentable or is_stated or not system.is_desktop:
        return ()
    return (f"at most {SMALL_SYSTEM} desktop cards (--max-accelerators)",)


def rentable(catalogue: Catalogue) -> tuple[Accelerator, ...]:
    """The GPUs for rent on demand that no other of the same vendor matches at the same or a lower price.

    Compares memory, memory bandwidth and bf16 peak, at the median of the listed prices.
    """
    priced = [
        (chip, cost.usd_per_accelerator_hour)
        for chip in catalogue.accelerators()
        if chip.kind == "gpu"
        and chip.peak_bf16_flop_per_s is not None
        and (cost := economics.price(chip.slug, terms="on_demand")) is not None
    ]

    def offers(chip: Accelerator) -> tuple[float, ...]:
        facts = (chip.memory_bytes, chip.memory_byte_per_s, chip.peak_bf16_flop_per_s)
        return tuple(each or 0.0 for each in facts)

    return tuple(
        chip
        for chip, usd in priced
        if not any(
            other.slug != chip.slug
            and other.vendor == chip.vendor
            and cost <= usd
            and all(theirs >= own for theirs, own in zip(offers(other), offers(chip), strict=True))
            for other, cost in priced
        )
    )


def _quoted(
    path: Path, found: Sequence[RequestedSystem], catalogue: Catalogue
) -> dict[str, tuple[Price, ...]]:
    """The quotes for each system, under its name or that of its accelerator."""
    listed = read_quotes(path)
    names: dict[str, str] = {}
    for each in listed:
        try:
            names[each.system] = catalogue.cluster(each.system).name
        except SpecError as err:
            raise DataError(f"{each.where}: {err}") from err
    quoted = {
        one.name: tuple(each.price for each in listed if names[each.system] in {one.name, one.accelerator})
        for one in found
    }
    if not any(quoted.values()):
        raise DataError(
            f"--prices {path}: has quotes of {', '.join(dict.fromkeys(names.values()))}; expected one of "
            f"{', '.join(quoted)}"
        )
    return quoted


def _by_system(
    option: str,
    pairs: Sequence[tuple[str, Any]],
    names: Sequence[str],
    catalogue: Catalogue,
    *,
    is_shared: bool,
) -> dict[str, Any]:
    """The value for each system. is_shared: whether a value without a name may apply to several systems.

    A named value overrides one without a name. Lists are merged; a number may be stated only once.
    """
    unnamed: list[Any] = []
    named: dict[str, list[Any]] = {}
    for raw, value in pairs:
        if not raw:
            if len(names) > 1 and not is_shared:
                raise UsageError(
                    f"--{option} {value:g} names no system, and the question has {len(names)}",
                    give=[{option: f"{names[0]}={value:g}"}],
                )
            unnamed.append(value)
            continue
        name = raw if raw in names else catalogue.cluster(raw).name
        if name not in names:
            shown = ",".join(value) if isinstance(value, tuple) else f"{value:g}"
            raise UsageError(
                f"--{option} {raw}={shown}: {name} is not in the question, which has {', '.join(names)}"
            )
        named.setdefault(name, []).append(value)
    found: dict[str, Any] = {}
    for name in names:
        values = named.get(name, unnamed)
        if values and isinstance(values[0], tuple):
            found[name] = tuple(dict.fromkeys(each for value in values for each in value))
        elif len(set(values)) > 1:
            raise UsageError(
                f"--{option} of {name} is {' and '.join(f'{each:g}' for each in values)}; keep one"
            )
        elif values:
            found[name] = values[0]
    return found


def _all_named(query: TrainingQuery, catalogue: Catalogue) -> tuple[RequestedSystem, ...]:
    """The systems that a question names. One error reports all unknown names."""
    found: list[RequestedSystem] = []
    refused: list[SpecError] = []
    for each in query.systems:
        try:
            found.append(_named(each, query, catalogue))
        except UnknownNameError as err:
            refused.append(err.within("--accelerator"))
        except SpecError as err:
            refused.append(err)
    if refused:
        every = ". ".join(each.message for each in refused).replace("?. ", "? ")
        raise SpecError(every, remedy=refused[-1].remedy) from refused[0]
    return tuple(found)


def _named(text: str, query: TrainingQuery, catalogue: Catalogue) -> RequestedSystem:
    """The system of a name such as `8xh100`, with the node facts that the question states."""
    count, name = counted_name(text)
    if count is not None and catalogue.hardware.find(text) is not None:  # `7900xtx`
        count, name = None, text.strip()
    if count is not None and not 1 <= count <= MAX_ACCELERATORS:
        raise UsageError(f"--accelerator {text}: expected a number from 1 to {MAX_ACCELERATORS:,}")
    node, notes = _network_facts(query), tuple[str, ...]()
    if query.node_size is not None:
        node["node_size"] = query.node_size
    usual = catalogue.cluster(name, power_cap_w=query.power_cap_w, **node)
    num_kinds = len(kinds(usual.accelerator))
    if count is not None and count % num_kinds:
        raise UsageError(
            f"--accelerator {text}: {name} has {num_kinds} kinds of accelerators in equal numbers; expected "
            f"a multiple of {num_kinds}, not {count}"
        )
    chosen: tuple[str, ...] = (f"equal numbers of the {num_kinds} kinds",) if num_kinds > 1 else ()
    links = None
    if query.topology is None and query.node_size is None and _is_one_host(count, usual):
        node["node_size"] = count
        chosen += (f"{count} in one host (--node-size for another)",)
        usual = catalogue.cluster(name, power_cap_w=query.power_cap_w, **node)
    if query.topology is not None:
        links = _topology_of_file(query.topology)
        wrong = _unknown_links(links) or _wrong_devices(links, usual, catalogue)
        wrong = wrong or _too_many_links(links, usual.accelerator) or _mig_slices(links)
        if wrong is not None:
            raise DataError(f"--topology {query.topology.name}: {wrong}")
        facts, notes = node_facts(links, usual)
        node = {**facts, **node}
        usual = catalogue.cluster(name, power_cap_w=query.power_cap_w, **node)
    notes += _ineffective_power_limit(query.power_cap_w, usual.accelerator)
    return RequestedSystem(
        name=usual.name,
        title=usual.accelerator.title
        if usual.name == usual.accelerator.slug
        else next((each.title for each in catalogue.systems() if each.slug == usual.name), usual.name),
        cluster=usual,
        node=node,
        stock=count,
        notes=notes,
        chosen_for_you=chosen,
        topology=links,
        uncapped_power_w=None if query.power_cap_w is None else catalogue.cluster(name).accelerator.power_w,
    )


def _ineffective_power_limit(power_cap_w: float | None, chip: Accelerator) -> tuple[str, ...]:
    """A note if a power limit is above the chip's own power; else empty."""
    if power_cap_w is None or chip.power_w is None or power_cap_w <= chip.power_w:
        return ()
    over = f"{power_cap_w:g} W is above the {chip.power_w:g} W of {chip.title}"
    return (f"A power limit of {over}: it changes nothing.",)


def _network_facts(query: TrainingQuery) -> NodeFacts:
    """The facts of the network between nodes that a question states."""
    if query.leaf_nodes is not None and query.oversubscription is None:
        raise UsageError("--leaf-nodes without --oversubscription changes nothing; give both, or neither")
    node: NodeFacts = {}
    if query.oversubscription is not None:
        node["oversubscription"] = query.oversubscription
    if query.leaf_nodes is not None:
        node["leaf_nodes"] = query.leaf_nodes
    return node


def with_number(
    system: RequestedSystem, number: int, query: TrainingQuery, catalogue: Catalogue
) -> RequestedSystem:
    """A system whose stock is assumed to be one host, as if another number of it were named."""
    other = _named(f"{number}x {system.name}", query, catalogue)
    return replace(system, cluster=other.cluster, node=other.node)


def is_assumed_host(system: RequestedSystem, query: TrainingQuery) -> bool:
    """Whether the cards of a stock are assumed to be in one host because of their number."""
    is_stated = query.node_size is not None or query.topology is not None
    return not is_stated and system.stock is not None and system.node.get("node_size") == system.stock


def _is_one_host(count: int | None, usual: Cluster) -> TypeGuard[int]:
    """Whether this many cards are assumed to be in one host without a switch, unlike a usual node.

    True for more cards than a usual node has, as long as one host takes them; for fewer only if they are for
    desktop computers, whose owner of four has a host of four. False for a named system, for a chip whose
    nodes the user describes, and for chips that share memory with their host.
    """
    ours = shipped().hardware.accelerators.get(usual.accelerator.slug)
    is_described = ours is None or ours.node_size != usual.node_size
    is_card = usual.name == usual.accelerator.slug and not usual.accelerator.shares_host_memory
    fewest = 2 if usual.accelerator.for_desktops else usual.node_size
    is_other = count is not None and fewest <= count <= _MAX_IN_HOST and count != usual.node_size
    return is_card and is_other and usual.topology == "host" and not is_described


def _topology_of_file(path: Path) -> "Topology":
    """The links of a node, from the output of a program such as `nvidia-smi topo -m`."""
    from equipoise.bench.topology import MOST_BYTES, read  # noqa: PLC0415 - only where a file is given

    content = read_input(path, MOST_BYTES, expected="the output of `nvidia-smi topo -m` for --topology")
    return read(content, where=path.name)


def _unknown_links(found: "Topology") -> str | None:
    """What is wrong with the links of pairs; None if all are known, or the text lists no links."""
    from equipoise.diagnose.link_findings import gaps  # noqa: PLC0415 - only where links are read

    pairs = found.between_devices
    classes = {each.link_class for each in pairs if each.link_class}
    beyond = {name for name in classes if kind(name) == "NV" and number(name) > most_links()}
    if beyond:
        return f"it states {', '.join(sorted(beyond))}, more links than any accelerator has"
    unknown = [each for each in pairs if each.link_class is None]
    why = "; ".join(each.removesuffix(".") for each in gaps(found)[:_MOST_NAMED])
    if not unknown or not why:
        return None
    return f"the link of {len(unknown):,} of {plural(len(pairs), 'pair')} of accelerators is not known: {why}"


def _mig_slices(found: "Topology") -> str | None:
    """Words for accelerators split into MIG slices, on which no joint training is planned; else None."""
    from equipoise.diagnose.link_findings import cut_devices  # noqa: PLC0415 - only where links are read

    cut = cut_devices(found)
    if not cut:
        return None
    return f"{cut[0]}, which suit separate runs; expected whole GPUs, with MIG switched off"


def _wrong_devices(found: "Topology", usual: Cluster, catalogue: Catalogue) -> str | None:
    """Words for links of accelerators other than the node's; None if they may be its own.

    Devices without a title or with an unknown title may be the node's own.
    """
    from equipoise.diagnose.links import named_chips  # noqa: PLC0415 - only where links are read

    chips = named_chips(found, catalogue)
    own = kinds(usual.accelerator)
    if not chips or {each.slug for each in chips} <= {*own}:
        return None
    return (
        f"it describes {' and '.join(each.title for each in chips)}, not {usual.accelerator.title}; ask "
        "about what it describes alone, or leave the file out"
    )


def _too_many_links(found: "Topology", chip: Accelerator) -> str | None:
    """Words for pairs with more NVLinks than the accelerator has; None if the links may be its own."""
    most = num_links(chip) or 0
    names = {each.link_class for each in found.between_devices if each.link_class}
    more = sorted(each for each in names if kind(each) == "NV" and number(each) > most)
    if not more or len(kinds(chip)) > 1:
        return None
    return (
        f"pairs have {', '.join(more)}, but {chip.title} has {most or 'no'} NVLinks; ask about the "
        "accelerator that the file describes, or leave the file out"
    )


def node_facts(found: "Topology", usual: Cluster) -> tuple[NodeFacts, tuple[str, ...]]:
    """The facts of a node from its own links, and a sentence on it.

    The link of the weakest pair limits collectives of the whole node.
    """
    devices = [device for device in found.devices if device.kind != _CPU]
    node: NodeFacts = {"node_size": len(devices)}
    classes = [link.link_class for link in found.between_devices if link.link_class is not None]
    weakest = max(classes, key=rank, default=None)
    linked = ""
    if weakest is not None:
        counts = Counter(classes)
        by_class = (f"{name} ({plural(counts[name], 'pair')})" for name in sorted(counts, key=rank))
        linked = f", linked by {', '.join(by_class)}"
        links = _links_between(found, [device.name for device in devices])
        if len(counts) == 1 and kind(weakest) == "NV":
            node |= _nvlink_facts(weakest, links, usual)
        elif _form_rings(links, usual.accelerator):
            node |= _mesh_facts(links, usual.accelerator)
        elif kind(weakest) not in FABRICS:
            node |= _host_link_facts(weakest, usual)
    return node, (f"The node: {len(devices)} x {usual.accelerator.title}{linked}.",)


def _links_between(found: "Topology", names: Sequence[str]) -> LinkCounts:
    """The number of NVLinks between every pair: a square table."""
    classes = {pair: number(each) for pair, each in found.classes.items() if kind(each) == "NV"}
    return tuple(tuple(classes.get(frozenset((one, other)), 0) for other in names) for one in names)


def _form_rings(links: LinkCounts, chip: Accelerator) -> bool:
    """Whether the chip has as many NVLinks, and they form rings through all, as in a DGX-1 with V100."""
    is_tried = len(links) <= _MAX_IN_RINGS and max(map(sum, links)) <= (num_links(chip) or 0)
    return is_tried and ring_links(links, tuple(range(len(links)))) > 0


def _nvlink_facts(name: str, links: LinkCounts, usual: Cluster) -> NodeFacts:
    """The facts of a node whose pairs all have the same number of NVLinks; empty if it is as usual.

    If an accelerator has enough links to reach every other with that number, the links are direct. Otherwise
    they lead to switches, and each accelerator has as many as a pair shows.
    Source: NVIDIA, `nvidia-smi topo -m` (NV#: a bonded set of # NVLinks).
    """
    chip = usual.accelerator
    stated, most = reach(name, chip).stated_byte_per_s[0], chip.link_byte_per_s
    if most is None:
        return {}
    if stated * (len(links) - 1) <= most:
        return _mesh_facts(links, chip)
    rate = min(most, stated)
    if rate == usual.intra.byte_per_s and usual.topology == "switch":
        return {}
    return {"topology": "switch", "intra_byte_per_s": rate, **_latency_facts(chip)}


def _mesh_facts(links: LinkCounts, chip: Accelerator) -> NodeFacts:
    """The facts of a node with direct links between accelerators, which may differ in number or be missing.

    Its rate is that of all links of one accelerator.
    Raises SpecError if the accelerator has no NVLink.
    """
    rows = tuple(" ".join(map(str, row)) for row in links)
    rate = reach("NV1", chip).stated_byte_per_s[0] * max(map(sum, links))
    node: NodeFacts = {"topology": "mesh", "links_between": rows, "switch_reduces": False}
    return {**node, "intra_byte_per_s": rate, **_latency_facts(chip)}


def _latency_facts(chip: Accelerator) -> NodeFacts:
    return {} if chip.intra_latency_s is None else {"intra_latency_s": chip.intra_latency_s}


def _system_at_hand(found: "Topology", catalogue: Catalogue) -> RequestedSystem:
    gpus = [device for device in found.devices if device.kind != _CPU]
    if not gpus:
        return _cpu_system(found, catalogue)
    from equipoise.diagnose.links import named_chips  # noqa: PLC0415 - only for the machine at hand

    chips = named_chips(found, catalogue)
    titles = ", ".join(sorted({device.title or "unnamed" for device in gpus}))
    if len(chips) != 1:
        raise EvidenceError(
            f"this machine has {len(gpus)} accelerators ({titles}), "
            f"{'of several kinds' if chips else 'none of them in the catalogue'}",
            missing=(
                "the name of one of them: --accelerator NAME"
                if chips
                else f"facts of {titles}: --hardware FILE.toml, then --accelerator NAME",
            ),
        )
    cut = _mig_slices(found)
    if cut is not None:
        raise EvidenceError(
            f"on this machine, {cut}", missing=("an accelerator by name: --accelerator NAME",)
        )
    unknown = _unknown_links(found)
    if unknown is not None:
        raise EvidenceError(
            f"on this machine, {unknown}",
            missing=("a file with its links: --accelerator NAME --topology FILE",),
        )
    usual = catalogue.cluster(chips[0].slug)
    node, notes = node_facts(found, usual)
    return RequestedSystem(
        name=usual.name,
        title=usual.accelerator.title,
        cluster=catalogue.cluster(chips[0].slug, **node),
        node=node,
        stock=len(gpus),
        notes=notes,
        topology=found,
    )


def _host_link_facts(weakest: str, usual: Cluster) -> NodeFacts:
    try:
        rate = reach(weakest, usual.accelerator)
    except SpecError:
        return {}
    return {
        "intra_byte_per_s": rate.byte_per_s,
        "intra_latency_s": rate.latency_s,
        "topology": "host",
        "switch_reduces": False,
    }


def _cpu_system(found: "Topology", catalogue: Catalogue) -> RequestedSystem:
    """The system of a machine without accelerators: its CPUs."""
    title = next((device.title for device in found.devices if device.title), "processor")
    cores = sum(device.num_cores or 0 for device in found.devices)
    slug = catalogue.accelerator_slug(title)
    where = f"This machine has no accelerator: {len(found.devices)} x {title}"
    return RequestedSystem(
        name=slug or title,
        title=title,
        cluster=None if slug is None else catalogue.cluster(slug),
        stock=len(found.devices),
        is_cpu=True,
        notes=(f"{where}{f', {cores} cores' if cores else ''}.",),
        topology=found,
    )


def kinds(chip: Accelerator) -> tuple[str, ...]:
    """The slugs of the kinds in an accelerator: several for a mixture, else its own."""
    return tuple(chip.slug.split(_JOINT))


def rates_of(query: TrainingQuery, system: RequestedSystem, terms: PriceTerms) -> Rates:
    """The rates of a system on some terms, with the user's own prices and quotes."""
    carbon = economics.grid(query.region, user_g_per_kwh=query.carbon_g_per_kwh)
    power = None
    if query.electricity_usd_per_kwh is not None or query.pue is not None:
        power = economics.electricity(
            usd_per_kwh=query.electricity_usd_per_kwh, pue=query.pue, in_office=system.is_desktop
        )
    own_usd = system.usd_per_accelerator_hour
    if system.cluster is None:  # not in the catalogue: only the user's own price is known
        return Rates(
            price=economics.price("", usd_per_accelerator_hour=own_usd, terms=terms),
            grid=carbon,
            accelerator_power_w=None,
            system_power=economics.SYSTEM_POWER,
            electricity=power,
        )
    chip = system.cluster.accelerator
    quoted = tuple(each for each in system.quotes if each.terms == terms) if own_usd is None else ()
    # A quote of zero means an owned machine, which costs electricity, as does a price of zero.
    user_usd = 0.0 if any(each.is_owned for each in quoted) else own_usd
    found = economics.rates(chip, user_price=user_usd, carbon=carbon, terms=terms, power=power)
    rated_w = system.uncapped_power_w
    if rated_w is not None and chip.power_w is not None and chip.power_w < rated_w:
        rest = found.system_power.under_cap(rated_w=rated_w, cap_w=chip.power_w)
        found = replace(found, system_power=rest)
    if quoted:
        return replace(found, price=quoted[0], others=quoted[1:])
    return replace(found, price=_mixed_price(chip, terms)) if found.price is None else found


def _mixed_price(chip: Accelerator, terms: PriceTerms) -> Price | None:
    """The mean price of the parts of a mixture, if all have one; None for a single chip.

    Source: definition; equal numbers of each.
    """
    prices = [economics.price(slug, terms=terms) for slug in kinds(chip)]
    known = [each for each in prices if each is not None]
    if len(prices) == 1 or len(known) < len(prices):
        return None
    return Price(
        accelerator=chip.slug,
        usd_per_accelerator_hour=fmean(each.usd_per_accelerator_hour for each in known),
        low=fmean(each.low for each in known),
        high=fmean(each.high for each in known),
        basis=f"mean of {' and '.join(each.accelerator for each in known)}",
        terms=terms,
        log_half_width=max(each.log_half_width for each in known),
    )
