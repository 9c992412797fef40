"""The machines that an advice chooses from: those named, or the one at hand, looked over."""

from collections import Counter
from dataclasses import dataclass, field

from equipoise.advice.answer.asked import Request
from equipoise.advice.links.links import named_chips
from equipoise.bench.topology import Topology, here
from equipoise.errors import EvidenceError, SpecError
from equipoise.spec.cluster import NodeFacts, cluster
from equipoise.spec.hardware import accelerator_slug
from equipoise.spec.link_class import FABRICS, kind, rank, reach

_CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine to choose from.

    name: of an accelerator or system of the catalogue; what the machine calls itself where is_known is False.
    node: facts that its own links state. most: how many there are; None where any number may be had.
    is_cpu: processors, of which ranks take cores.
    """

    name: str
    title: str
    is_known: bool = True
    node: NodeFacts = field(default_factory=NodeFacts)
    most: int | None = None
    is_cpu: bool = False
    notes: tuple[str, ...] = ()


def machines(request: Request, *, topology: Topology | None = None) -> tuple[Machine, ...]:
    """The machines of a request, in the order named.

    topology: of this machine, in place of looking it over. Raises SpecError for names that are not known,
    EvidenceError where this machine's accelerators are of no kind that is.
    """
    if not request.here:
        return tuple(
            Machine(name=name, title=cluster(name).accelerator.title) for name in request.accelerators
        )
    return (_at_hand(topology or here()),)


def _at_hand(found: Topology) -> Machine:
    gpus = [device for device in found.devices if device.kind != _CPU]
    if not gpus:
        return _processors(found)
    chips = named_chips(found)
    titles = ", ".join(sorted({device.title or "no name" for device in gpus}))
    if len(chips) != 1:
        raise EvidenceError(
            f"this machine has {len(gpus)} accelerators ({titles}), "
            f"{'of several kinds' if chips else 'of no kind that the catalogue has'}",
            missing=(
                "one of them by name: --accelerator NAME"
                if chips
                else f"facts of {titles}: --hardware FILE.toml, then --accelerator NAME",
            ),
        )
    chip = chips[0]
    node: NodeFacts = {"node_size": len(gpus)}
    classes = [link.link_class for link in found.between_devices if link.link_class is not None]
    weakest = max(classes, key=rank, default=None)
    joined = ""
    if weakest is not None:
        counts = Counter(classes)
        joined = (
            f", joined by {', '.join(f'{name} ({counts[name]} pairs)' for name in sorted(counts, key=rank))}"
        )
        if kind(weakest) not in FABRICS:
            node |= _through_host(weakest, chip.slug)
    return Machine(
        name=chip.slug,
        title=chip.title,
        node=node,
        most=len(gpus),
        notes=(f"This machine: {len(gpus)} x {chip.title}{joined}.",),
    )


def _through_host(weakest: str, slug: str) -> NodeFacts:
    """The rate of the weakest pair, which all that all of them do together has to pass."""
    try:
        rate = reach(weakest, cluster(slug).accelerator)
    except SpecError:
        return {}
    return {
        "intra_byte_per_s": rate.byte_per_s,
        "intra_latency_s": rate.latency_s,
        "topology": "host",
        "switch_reduces": False,
    }


def _processors(found: Topology) -> Machine:
    """A machine without accelerators: its processors are what there is."""
    title = next((device.title for device in found.devices if device.title), "processor")
    cores = sum(device.num_cores or 0 for device in found.devices)
    slug = accelerator_slug(title)
    told = f"This machine has no accelerator: {len(found.devices)} x {title}"
    return Machine(
        name=slug or title,
        title=title,
        is_known=slug is not None,
        most=len(found.devices),
        is_cpu=True,
        notes=(f"{told}{f', {cores} cores' if cores else ''}.",),
    )
