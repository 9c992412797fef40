"""The catalogue of a question: accelerators, systems and workloads, a user's files among them.

It is a value that is passed on: nothing here changes what another caller sees. Reading is elsewhere.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

from msgspec import Struct

from equipoise.spec.cluster import Cluster, NodeFacts, System, Systems, load_systems, shipped_systems
from equipoise.spec.hardware import Accelerator, AcceleratorAlias, Hardware, load_hardware
from equipoise.spec.workload import Workload, WorkloadTable, load_workloads, shipped_workloads

_COUNTED = re.compile(r"\s*([0-9]{1,12})\s*[x\u00d7]\s*(.+)", re.IGNORECASE)


class Catalogue(Struct, frozen=True, kw_only=True):
    """Accelerators, systems and workloads with every spelling of them. Built by `catalogue`; read-only.

    Equal where the tables are equal, so it can be part of the key of a cache.
    """

    system_table: Systems
    workload_table: WorkloadTable

    def __hash__(self) -> int:
        """Of the slugs: catalogues that differ in single fields alone are distinguished by comparing them."""
        tables = (self.hardware.accelerators, self.system_table.systems, self.workload_table.workloads)
        return hash(tuple(map(tuple, tables)))

    def __repr__(self) -> str:
        """How much it has; the tables themselves are thousands of fields."""
        tables = (self.hardware.accelerators, self.system_table.systems, self.workload_table.workloads)
        return "Catalogue({} accelerators, {} systems, {} workloads)".format(*map(len, tables))

    def __reduce__(self) -> tuple[Callable[..., "Catalogue"], tuple[object, ...]]:
        """As plain dictionaries, for workers in other processes."""
        return _from_tables, tuple(
            {name: dict(getattr(table, name)) for name in names}
            for table, names in (
                (self.hardware, ("accelerators", "names", "names_in_systems", "claimed")),
                (self.system_table, ("systems", "names")),
                (self.workload_table, ("workloads", "names")),
            )
        )

    @property
    def hardware(self) -> Hardware:
        """The accelerators, with their spellings."""
        return self.system_table.hardware

    def accelerator(self, name: str) -> Accelerator:
        """The accelerator that a person names: by slug, title, alias or a short name (`h100`, `rtx4090`).

        Raises SpecError with the nearest names and the file to edit, or with what it may mean.
        """
        return self.hardware.accelerator(name)

    def accelerator_alias(self, raw: str, system_name: str | None = None) -> AcceleratorAlias | None:
        """What a raw name of a log or table means, by exact aliases alone; None where there is none."""
        return self.hardware.alias(raw, system_name)

    def accelerator_slug(self, raw: str, system_name: str | None = None) -> str | None:
        """The slug that a raw name of a log or table stands for, by exact aliases alone."""
        found = self.accelerator_alias(raw, system_name)
        return None if found is None else found.slug

    def accelerators(self) -> tuple[Accelerator, ...]:
        """Every accelerator, in the order of the files."""
        return tuple(self.hardware.accelerators.values())

    def cluster(
        self,
        name: str,
        *,
        num_accelerators: int | None = None,
        power_cap_w: float | None = None,
        **stated: Unpack[NodeFacts],
    ) -> Cluster:
        """A cluster of so many accelerators, as `Systems.cluster` makes it.

        >>> shipped().cluster("rtx4090", num_accelerators=2).accelerator.slug
        'rtx-4090-pcie-24gb'
        """
        table = self.system_table
        return table.cluster(name, num_accelerators=num_accelerators, power_cap_w=power_cap_w, **stated)

    def systems(self) -> tuple[System, ...]:
        """Every named system, in the order of the files."""
        return tuple(self.system_table.systems.values())

    def workload(self, name: str) -> Workload:
        """The workload of a slug, title or alias. Raises SpecError with the nearest names."""
        return self.workload_table.workload(name)

    def workload_slug(self, raw: str, round_number: float | None = None) -> str | None:
        """The slug that a raw name stands for, in a round where given; None when unknown."""
        return self.workload_table.slug(raw, round_number)

    def workloads(self) -> tuple[Workload, ...]:
        """Every workload, in the order of the files."""
        return tuple(self.workload_table.workloads.values())


def catalogue(hardware: Sequence[Path] = (), workloads: Sequence[Path] = ()) -> Catalogue:
    """The shipped tables and then a user's files; of two statements on a field or name the later wins.

    hardware: tables of accelerators and systems, as `--hardware` takes them; workloads: as `--workloads`.
    Raises SpecError with file and line where a file is not such a table.
    """
    if not hardware and not workloads:
        return shipped()
    systems = load_systems(hardware, load_hardware(hardware)) if hardware else shipped_systems()
    return Catalogue(
        system_table=systems,
        workload_table=load_workloads(workloads) if workloads else shipped_workloads(),
    )


@cache
def shipped() -> Catalogue:
    """The catalogue that comes with the package."""
    return Catalogue(system_table=shipped_systems(), workload_table=shipped_workloads())


def counted_name(text: str) -> tuple[int | None, str]:
    """The number before a name that a person types, and the name; None where it has no number.

    >>> counted_name("3x rtx4090"), counted_name("64xh100"), counted_name("dgx-h100")
    ((3, 'rtx4090'), (64, 'h100'), (None, 'dgx-h100'))
    """
    found = _COUNTED.fullmatch(text)
    return (int(found[1]), found[2].rstrip()) if found else (None, text.strip())


def _from_tables(
    hardware: Mapping[str, Mapping[Any, Any]],
    systems: Mapping[str, Mapping[Any, Any]],
    workloads: Mapping[str, Mapping[Any, Any]],
) -> Catalogue:
    """The catalogue of the dictionaries that `Catalogue.__reduce__` made."""

    def read_only(tables: Mapping[str, Mapping[Any, Any]]) -> dict[str, Any]:
        return {name: MappingProxyType(dict(table)) for name, table in tables.items()}

    chips = Hardware(**read_only(hardware))
    return Catalogue(
        system_table=Systems(**read_only(systems), hardware=chips),
        workload_table=WorkloadTable(**read_only(workloads)),
    )
