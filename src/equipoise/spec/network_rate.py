"""Networks by their stated rate, e.g. `10gbit`: what long transfers over TCP reach of it."""

import re

from equipoise.spec.link_class import Reach

# Of a frame's bytes on the wire, those that are payload: 38 bytes of Ethernet and 52 of TCP/IP go with each.
_FRAMED, _FRAMED_JUMBO = 1448 / 1538, 8948 / 9038
# As much less is what healthy machines of one kind differ by at most (advice.collectives).
_MARGIN = 0.15
_RATE = re.compile(r"(\d{1,4}(?:\.\d{1,3})?)gbit")
_GBIT_BYTE_PER_S = 125_000_000.0


def network_reach(word: str) -> Reach | None:
    """What a network of a stated rate reaches in each direction; None for a word that is no such rate.

    Assumes TCP/IPv4 with timestamps over Ethernet, frames of 1500 or 9000 bytes, nothing else on the wire.
    latency_s is 0: a rate does not tell it.
    Source: IEEE 802.3 (preamble 8, header 14, check 4, gap 12 bytes a frame), RFC 791, 793 and 7323.

    >>> round(network_reach("1gbit").byte_per_s / 1e6, 1), network_reach("PHB")
    (117.7, None)
    """
    found = _RATE.fullmatch(word.strip().lower())
    if found is None or not float(found[1]):
        return None
    stated = float(found[1]) * _GBIT_BYTE_PER_S
    return Reach(
        path="network",
        stated_byte_per_s=(stated, stated),
        byte_per_s=stated * _FRAMED,
        low=stated * _FRAMED * (1 - _MARGIN),
        high=stated * _FRAMED_JUMBO,
        latency_s=0.0,
        source="payload of Ethernet frames: IEEE 802.3, RFC 791, 793 and 7323",
    )
