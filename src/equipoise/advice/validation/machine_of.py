"""The machine that the words of a row name."""

from functools import cache

from equipoise.errors import SpecError
from equipoise.perfmodel.machine import Machine, machine
from equipoise.runs.readers.cells import echo
from equipoise.spec.cluster_text import cluster_in_text


@cache
def machine_of(hardware: str, num_accelerators: int) -> Machine:
    """The rates of so many of the hardware that a table names. Raises SpecError where nobody knows it."""
    cluster = cluster_in_text(hardware, num_accelerators=num_accelerators)
    if cluster is None:
        raise SpecError(
            f"hardware {echo(hardware)} names no known system or accelerator; add it with --hardware"
        )
    return machine(cluster)
