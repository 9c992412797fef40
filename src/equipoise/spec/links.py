"""Link classes between accelerators, as `nvidia-smi topo -m` prints them, and their achievable rates."""

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
# Best first. NVLink has the number of bonded links as a suffix, XGMI the number of hops if more than one.
KINDS = ("NV", "XGMI", "PIX", "PXB", "PHB", "PCIE", "NODE", "SYS")
FABRICS = frozenset({"NV", "XGMI"})
# The words for peer access in the output of `nvidia-smi topo -p2p`.
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
# Rates of slots, PCIe 3, 4 and 5 with 16 lanes, used if the accelerator is not known.
_SLOTS_BYTE_PER_S = (15.75e9, 31.5e9, 63e9)
_GENERATION = re.compile(r"NVLink (\d)")


def link_class(word: str) -> str | None:
    """Return the class that a word names, in today's spelling; None if it names none.

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
    """Return a class without its number.

    >>> kind("NV12"), kind("SYS")
    ('NV', 'SYS')
    """
    return name.rstrip("0123456789")


def number(name: str) -> int:
    """Return the number of a class: bonded links of NV#, hops of XGMI#; 1 if it has none."""
    return int(name[len(kind(name)) :] or 1)


def rank(name: str) -> tuple[int, int]:
    """Return a sort key of classes, best first: more NVLinks before fewer, fewer hops before more.

    >>> sorted(["SYS", "NV4", "PHB", "NV12"], key=rank)
    ['NV12', 'NV4', 'PHB', 'SYS']
    """
    place = KINDS.index(kind(name))
    return place, -number(name) if kind(name) == "NV" else number(name)


def meaning(name: str) -> str:
    """Return a short description of the path between two devices of a class."""
    return str(_facts()["class"][kind(name)]["meaning"])


class LinkReach(Struct, frozen=True, kw_only=True):
    """Achievable rates of long transfers over a link, in byte/s per direction with both directions busy.

    low, high: range over machines. stated_byte_per_s: lowest and highest rate stated by vendors, which are
    equal if the accelerator is known. path: fabric, near, far or staged (through the host's memory); two of
    them if not known.
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
    """Return the achievable rate of a link class between two accelerators, without other traffic on the path.

    chip: None if not known, in which case the range covers all candidates. has_peers: whether each can access
    the other's memory directly; None if not known. slot_byte_per_s: by default that of the accelerator.
    Raises SpecError if the accelerator has no such link.
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


# Payload fraction of a frame's bytes on the wire, with overheads of 38 bytes of Ethernet and 52 of TCP/IP.
_FRAMED, _FRAMED_JUMBO = 1448 / 1538, 8948 / 9038
# The largest difference between healthy machines of one kind (diagnose).
_MARGIN = 0.15
_NETWORK_RATE = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)gbit")
_GBIT_BYTE_PER_S = 125_000_000.0


def network_reach(word: str) -> LinkReach | None:
    """Return the achievable rate of a network per direction; None if the word does not state a rate.

    Assumes TCP/IPv4 with timestamps over Ethernet, frames of 1500 or 9000 bytes, and no other traffic.
    latency_s is 0, because it cannot be derived from a rate.
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
    """Return the possible paths of data; two if peer access is not known."""
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
    """Return the range of rates of one pair in a mesh; links are divided among peers, rates among hops."""
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
    """Return the stated rate of one NVLink of an accelerator in one direction; None if it has none."""
    generation = _generation(chip)
    if generation is None:
        return None
    if chip.slug in generation.get("apart", ()):
        return float(generation["apart_byte_per_s"])
    return float(generation["byte_per_s"])


def num_links(chip: Accelerator) -> int | None:
    """Return the number of NVLinks of an accelerator; None if it has none."""
    rate = link_byte_per_s(chip)
    total = chip.bridge_byte_per_s or chip.link_byte_per_s
    return None if rate is None or total is None else round(total / rate)


def _generation(chip: Accelerator) -> Mapping[str, Any] | None:
    found = _GENERATION.search(chip.link or "")
    if found is None and chip.bridge_byte_per_s:
        # The table states the slot as its link; a bridge of 300e9 byte/s has twelve links of either rate
        # (NVLink 3).
        found = _GENERATION.search("NVLink 3")
    return None if found is None else _facts()["generation"].get(found[1])


def nvlink_candidates(count: int, chips: Sequence[Accelerator] = ()) -> tuple[Accelerator, ...]:
    """Return accelerators that may have `count` bonded links to another: all their links, or some in a mesh.

    Assumes equal numbers of links to each peer in a mesh with enough links for all peers; with fewer, as in
    the cube mesh of V100, any number may join two.
    chips: candidates; by default those of the shipped table.

    >>> sorted({round(num_links(each) * link_byte_per_s(each) / 1e9) for each in nvlink_candidates(18)})
    [450, 900]
    """
    known = [(each, num_links(each) or 0) for each in chips or accelerators()]
    meant = [each for each, links in known if links == count or _may_bond(each, links, count)]
    return tuple(meant) or tuple(each for each, links in known if links > count)


def _may_bond(chip: Accelerator, links: int, count: int) -> bool:
    """Return whether `count` of an accelerator's links may join it to one peer in a mesh."""
    num_peers = (chip.node_size or 1) - 1
    each = links // num_peers if 0 < num_peers <= links else links
    return chip.topology == "mesh" and count <= each


def most_links() -> int:
    """Return the largest number of NVLinks of any accelerator; pairs that need more use a switch."""
    return max(int(each["num_links"]) for each in _facts()["generation"].values())


@cache
def _facts() -> Mapping[str, Any]:
    return shipped_table(LINKS_FILE)


COLLECTIVES_FILE = Path(__file__).with_name("collectives.toml")


class PublishedCollective(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published bus bandwidth of a collective.

    link: the class of the weakest link between the ranks of a node, as `nvidia-smi topo -m` names it.
    payload_bytes: None if a peak was stated without its size. how: None if not stated.
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
    """Return every published figure, in the order of the file."""
    stated = shipped_table(COLLECTIVES_FILE)["published"]
    return tuple(converted({"slug": slug, **each}, PublishedCollective) for slug, each in stated.items())
