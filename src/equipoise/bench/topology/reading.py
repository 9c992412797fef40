"""From text that somebody pasted to a topology."""

from equipoise.bench.topology import amd, nvidia
from equipoise.bench.topology.cleaned import plain_lines
from equipoise.bench.topology.topology import Topology
from equipoise.errors import DataError

# Which functions read which tool's text; the first that finds anything is believed.
READERS = (amd.read, nvidia.read)


def read(content: bytes, *, where: str) -> Topology:
    """The topology of a machine from what its tools printed.

    where: the name of the file, for messages.
    Raises DataError where it is no text, or tells of no accelerator.
    """
    lines = plain_lines(content, where)
    for reader in READERS:
        found = reader(lines)
        if found is not None and found.devices:
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
