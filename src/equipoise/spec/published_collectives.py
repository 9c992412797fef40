"""Collectives that others timed and published: what a healthy machine reaches. Facts: collectives.toml."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

from equipoise.spec.facts import Block, read_blocks
from equipoise.spec.hardware import CONFIDENCES, Confidence, accelerator

COLLECTIVES_FILE = Path(__file__).with_name("collectives.toml")

_KINDS = frozenset({"published"})
_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_KEYS = frozenset(
    {
        *("operation", "accelerator", "link", "num_ranks", "num_nodes", "payload_bytes", "bus_byte_per_s"),
        *("how", "source", "confidence"),
    }
)
_NEEDED = (
    "operation",
    "accelerator",
    "link",
    "num_ranks",
    "num_nodes",
    "bus_byte_per_s",
    "source",
    "confidence",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCollective:
    """One published figure: the bandwidth of the bus that a collective reached.

    link: the class of the weakest link between the ranks of a node, as `nvidia-smi topo -m` names it.
    payload_bytes: None where a peak was stated without its size. how: None where the source does not say.
    """

    slug: str
    operation: str
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
    """Every published figure, in the order of the file.

    Raises SpecError with file and line if the file is not such a table.
    """
    return tuple(_published(block) for block in read_blocks(COLLECTIVES_FILE, _KINDS))


def _published(block: Block) -> PublishedCollective:
    block.check_keys(_KEYS)
    for key in _NEEDED:
        if block.fields.get(key) is None:
            raise block.refuse(key, "a value")
    return PublishedCollective(
        slug=block.slug,
        operation=cast("str", block.one_of("operation", _OPERATIONS)),
        accelerator=accelerator(cast("str", block.text("accelerator"))).slug,
        link=cast("str", block.text("link")),
        num_ranks=cast("int", block.count("num_ranks")),
        num_nodes=cast("int", block.count("num_nodes")),
        bus_byte_per_s=cast("float", block.number("bus_byte_per_s")),
        source=cast("str", block.text("source")),
        confidence=cast("Confidence", block.one_of("confidence", CONFIDENCES)),
        payload_bytes=block.count("payload_bytes"),
        how=cast('Literal["switch", "ring"] | None', block.one_of("how", ("switch", "ring"))),
    )
