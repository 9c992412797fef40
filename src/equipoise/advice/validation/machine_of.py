"""The machine that the words of a row name."""

from functools import lru_cache

from equipoise.errors import SpecError
from equipoise.perfmodel.machine import Machine, machine
from equipoise.runs.readers.cells import echo
from equipoise.runs.readers.published.rows import PublishedRow
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.cluster_text import cluster_in_text

_MOST_MACHINES = 4096


def machine_of(row: PublishedRow) -> Machine:
    """The rates of the accelerators of a row. Raises SpecError where its catalogue does not know them."""
    return _machine(row.hardware, row.num_accelerators, row.catalogue)


@lru_cache(maxsize=_MOST_MACHINES)
def _machine(hardware: str, num_accelerators: int, catalogue: Catalogue) -> Machine:
    cluster = cluster_in_text(hardware, num_accelerators=num_accelerators, catalogue=catalogue)
    if cluster is None:
        raise SpecError(
            f"hardware {echo(hardware)} names no known system or accelerator; add it with --hardware"
        )
    return machine(cluster)
