"""Classes of link between two accelerators, as `nvidia-smi topo -m` prints them, and the rates they reach."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from equipoise.errors import SpecError
from equipoise.files import converted, shipped_table
from equipoise.spec.hardware import Accelerator, Confidence, accelerators

LINKS_FILE = Path(__file__).with_name("links.toml")
# Best first. What has a number after it is NVLink (links bonded) and XGMI (hops, where more than one).
KINDS = ("NV", "XGMI", "PIX", "PXB", "PHB", "PCIE", "NODE", "SYS")
FABRICS = frozenset({"NV", "XGMI"})
# Peer access as `nvidia-smi topo -p2p` prints it.
PEER_WORDS: Mapping[str, str] = {
    "OK": "works",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "not supported",
    "DR": "disabled in the registry",
    "U": "unknown",
}
_SPELLING = re.compile(r"(NV|XGMI)(\d{1,2})|(XGMI|PIX|PXB|PHB|PCIE|NODE|SYS)|(SOC)")
# Slots that accelerators sit in, PCIe 3, 4 and 5 with 16 lanes, where the accelerator is not known.
_SLOTS_BYTE_PER_S = (15.75e9, 31.5e9, 63e9)
_GENERATION = re.compile(r"NVLink (\d)")


def link_class(word: str) -> str | None:
    """The class that a word names, in today's spelling; None for what is none.

    >>> link_class("SOC"), link_class("nv12"), link_class("GNS")
    ('SYS', 'NV12', None)
    """
    found = _SPELLING.fullmatch(word.strip().upper())
    if found is None or (found[1] == "NV" and int(found[2]) == 0):
        return None
    if found[4]:
        return "SYS"
    return found[3] or f"{found[1]}{int(found[2])}"


def kind(name: str) -> str:
    """A class without its number.

    >>> kind("NV12"), kind("SYS")
    ('NV', 'SYS')
    """
    return name.rstrip("0123456789")


def number(name: str) -> int:
    """The number of a class: bonded links of NV#, hops of XGMI#; 1 where it has none."""
    return int(name[len(kind(name)) :] or 1)


def rank(name: str) -> tuple[int, int]:
    """By what classes sort, best first: more NVLinks before fewer, fewer hops before more.

    >>> sorted(["SYS", "NV4", "PHB", "NV12"], key=rank)
    ['NV12', 'NV4', 'PHB', 'SYS']
    """
    place = KINDS.index(kind(name))
    return place, -number(name) if kind(name) == "NV" else number(name)


def meaning(name: str) -> str:
    """What is between two devices of a class, in a few words."""
    return str(_facts()["class"][kind(name)]["meaning"])


class LinkReach(Struct, frozen=True, kw_only=True):
    """What long transfers over a link reach, byte/s in each direction while both are busy.

    low, high: how machines differ. stated_byte_per_s: by the makers; the lowest and the highest where the
    accelerator is not known. path: fabric, near, far or staged (through the host's memory); two of them where
    it is not known.
    """

    path: str
    stated_byte_per_s: tuple[float, float]
    byte_per_s: float
    low: float
    high: float
    latency_s: float
    source: str


def reach(
    name: str,
    chip: Accelerator | None = None,
    *,
    has_peers: bool | None = None,
    slot_byte_per_s: float | None = None,
) -> LinkReach:
    """What a class of link reaches between two accelerators of a kind, alone on their path.

    chip: None where it is not known; the range then holds all it may be. has_peers: whether each reaches the
    other's memory itself; None where not known. slot_byte_per_s: where known; else the accelerator's own.
    Raises SpecError where the accelerator has no such link.
    Source: links.toml.
    """
    stated = _stated(name, chip, slot_byte_per_s)
    paths = _paths(name, chip, has_peers=has_peers)
    facts = [_facts()["path"][each] for each in paths]
    low = stated[0] * min(each["low"] for each in facts)
    high = stated[1] * max(each["high"] for each in facts)
    middle = [(stated[0] * stated[1]) ** 0.5 * each["typical"] for each in facts]
    return LinkReach(
        path=" or ".join(paths),
        stated_byte_per_s=stated,
        byte_per_s=middle[0] if len(middle) == 1 else (middle[0] * middle[1]) ** 0.5,
        low=low,
        high=high,
        latency_s=max(each["latency_s"] for each in facts),
        source=str(facts[0]["source"]),
    )


# Of a frame's bytes on the wire, those that are payload: 38 bytes of Ethernet and 52 of TCP/IP go with each.
_FRAMED, _FRAMED_JUMBO = 1448 / 1538, 8948 / 9038
# As much less is what healthy machines of one kind differ by at most (diagnose).
_MARGIN = 0.15
_NETWORK_RATE = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)gbit")
_GBIT_BYTE_PER_S = 125_000_000.0


def network_reach(word: str) -> LinkReach | None:
    """What a network of a stated rate reaches in each direction; None for a word that is no such rate.

    Assumes TCP/IPv4 with timestamps over Ethernet, frames of 1500 or 9000 bytes, nothing else on the wire.
    latency_s is 0: it does not follow from a rate.
    Source: IEEE 802.3 (preamble 8, header 14, check 4, gap 12 bytes a frame), RFC 791, 793 and 7323.

    >>> round(network_reach("1gbit").byte_per_s / 1e6, 1), network_reach("PHB")
    (117.7, None)
    """
    found = _NETWORK_RATE.fullmatch(word.strip().lower())
    if found is None or not float(found[1]):
        return None
    stated = float(found[1]) * _GBIT_BYTE_PER_S
    return LinkReach(
        path="network",
        stated_byte_per_s=(stated, stated),
        byte_per_s=stated * _FRAMED,
        low=stated * _FRAMED * (1 - _MARGIN),
        high=stated * _FRAMED_JUMBO,
        latency_s=0.0,
        source="payload of Ethernet frames: IEEE 802.3, RFC 791, 793 and 7323",
    )


def _paths(name: str, chip: Accelerator | None, *, has_peers: bool | None) -> tuple[str, ...]:
    """The paths bytes may take; two where nobody knows whether peers reach each other."""
    direct = str(_facts()["class"][kind(name)]["path"])
    if kind(name) in FABRICS or has_peers:
        return (direct,)
    if has_peers is False or (chip is not None and chip.slug in _facts()["without_peers"]):
        return ("staged",)
    return (direct,) if chip is not None else (direct, "staged")


def _stated(name: str, chip: Accelerator | None, slot_byte_per_s: float | None) -> tuple[float, float]:
    if kind(name) == "NV":
        rates = [link_byte_per_s(each) for each in ([chip] if chip else nvlink_candidates(number(name)))]
        known = [rate * number(name) for rate in rates if rate is not None]
        if not known:
            raise SpecError(f"{name} between {chip.slug if chip else 'accelerators'}: it has no NVLink")
        return min(known), max(known)
    if kind(name) == "XGMI":
        return _mesh_rates(chip, number(name))
    if slot_byte_per_s is not None:
        return slot_byte_per_s, slot_byte_per_s
    if chip is not None and chip.host_byte_per_s is not None:
        return chip.host_byte_per_s, chip.host_byte_per_s
    return _SLOTS_BYTE_PER_S[0], _SLOTS_BYTE_PER_S[-1]


def _mesh_rates(chip: Accelerator | None, num_hops: int) -> tuple[float, float]:
    """Of one pair in a mesh, whose links divide over the peers; a pair in two hops shares both."""
    meshes = [
        each.link_byte_per_s / max(1, (each.node_size or 2) - 1)
        for each in ([chip] if chip else accelerators())
        if each.topology == "mesh" and each.vendor == "AMD" and each.link_byte_per_s
    ]
    if not meshes:
        raise SpecError(
            f"XGMI between {chip.slug if chip else 'accelerators'}: it has no Infinity Fabric links"
        )
    return min(meshes) / num_hops, max(meshes) / num_hops


def link_byte_per_s(chip: Accelerator) -> float | None:
    """The stated rate of one NVLink of an accelerator, one direction; None where it has none."""
    generation = _generation(chip)
    if generation is None:
        return None
    if chip.slug in generation.get("apart", ()):
        return float(generation["apart_byte_per_s"])
    return float(generation["byte_per_s"])


def num_links(chip: Accelerator) -> int | None:
    """NVLinks of an accelerator; None where it has none."""
    rate = link_byte_per_s(chip)
    total = chip.bridge_byte_per_s or chip.link_byte_per_s
    return None if rate is None or total is None else round(total / rate)


def _generation(chip: Accelerator) -> Mapping[str, Any] | None:
    found = _GENERATION.search(chip.link or "")
    if found is None and chip.bridge_byte_per_s:
        # The table states the slot as its link; a bridge of 300e9 byte/s has twelve links of either rate.
        found = _GENERATION.search("NVLink 3")
    return None if found is None else _facts()["generation"].get(found[1])


def nvlink_candidates(count: int, chips: Sequence[Accelerator] = ()) -> tuple[Accelerator, ...]:
    """Accelerators that may have `count` bonded links to another: all their links, or in a mesh some of them.

    Assumes that a mesh with links for every peer has as many to each; in one with fewer, such as the cube
    mesh of V100, any number may join two.
    chips: to choose from; the shipped table's unless given.

    >>> sorted({round(num_links(each) * link_byte_per_s(each) / 1e9) for each in nvlink_candidates(18)})
    [450, 900]
    """
    known = [(each, num_links(each) or 0) for each in chips or accelerators()]
    meant = [each for each, links in known if links == count or _may_bond(each, links, count)]
    return tuple(meant) or tuple(each for each, links in known if links > count)


def _may_bond(chip: Accelerator, links: int, count: int) -> bool:
    """Whether so many of an accelerator's links may join it to one of the others of a mesh."""
    num_peers = (chip.node_size or 1) - 1
    each = links // num_peers if 0 < num_peers <= links else links
    return chip.topology == "mesh" and count <= each


def most_links() -> int:
    """The most NVLinks any accelerator has: pairs that need more among them go through a switch."""
    return max(int(each["num_links"]) for each in _facts()["generation"].values())


@cache
def _facts() -> Mapping[str, Any]:
    return shipped_table(LINKS_FILE)


COLLECTIVES_FILE = Path(__file__).with_name("collectives.toml")


class PublishedCollective(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published figure: the bandwidth of the bus that a collective reached.

    link: the class of the weakest link between the ranks of a node, as `nvidia-smi topo -m` names it.
    payload_bytes: None where a peak was stated without its size. how: None where not stated.
    """

    slug: str
    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
    accelerator: str
    link: str
    num_ranks: int
    num_nodes: int
    bus_byte_per_s: float
    source: str
    confidence: Confidence
    payload_bytes: int | None = None
    how: Literal["switch", "ring"] | None = None


@cache
def published_collectives() -> tuple[PublishedCollective, ...]:
    """Every published figure, in the order of the file."""
    stated = shipped_table(COLLECTIVES_FILE)["published"]
    return tuple(converted({"slug": slug, **each}, PublishedCollective) for slug, each in stated.items())
