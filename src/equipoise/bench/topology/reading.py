"""From text that somebody pasted to a topology."""

from equipoise.bench.topology import amd, nvidia
from equipoise.bench.topology.cleaned import plain_lines
from equipoise.bench.topology.topology import Topology
from equipoise.errors import DataError, EvidenceError

# Which functions read which tool's text; the first that finds anything is believed.
READERS = (amd.read, nvidia.read)


def read(content: bytes, *, where: str) -> Topology:
    """The topology of a machine from what its tools printed.

    where: the name of the file, for messages.
    Raises DataError where it is no text, or tells of no accelerator; EvidenceError where it tells no link.
    """
    lines = plain_lines(content, where)
    for reader in READERS:
        found = reader(lines)
        if found is not None and found.devices:
            _check_tells_anything(found, where)
            return found
    said = (
        "empty"
        if not any(line.strip() for line in lines)
        else "no matrix of links and no list of accelerators"
    )
    raise DataError(
        f"{where}: {said}; expected what `nvidia-smi topo -m`, `nvidia-smi -L`, `rocm-smi --showtopo` or "
        "`amd-smi topology` print"
    )


def _check_tells_anything(found: Topology, where: str) -> None:
    """Refuse a text of which only the heads of the columns are left."""
    absent = {row.name for row in found.missing_rows if row.num_cells == 0}
    names = [device.name for device in found.devices if device.name in absent]
    told = any(link.peers or link.weight for link in found.links) or any(
        device.title for device in found.devices
    )
    if len(names) > 1 and len(names) == len(found.devices) and not (told or found.classes):
        raise EvidenceError(
            f"{where}: {len(names)} accelerators are named and no link between them is told",
            missing=(f"the rows {', '.join(names[:8])}",),
        )
