"""Raw names of an entry to slugs of the catalogue; what the catalogue does not have stays raw, counted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from equipoise.runs.reader import UnknownName
from equipoise.runs.readers.mlperf.system import SystemFacts
from equipoise.spec import hardware, names, workload

_EDITS = {
    "accelerator": hardware.EDIT,
    "availability": names.EDIT,
    "division": names.EDIT,
    "framework": names.EDIT,
    "workload": workload.EDIT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What an entry ran on: accelerator as slug or raw name, its count, nodes; None where nobody says."""

    accelerator: str | None
    num_accelerators: int | None
    num_nodes: int | None


@dataclass(slots=True)
class Names:
    """Looks names up and counts those that no table has, once an entry."""

    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)

    def slug(self, kind: str, raw: str | None, lookup: Callable[[str], str | None]) -> str | None:
        """The slug of a raw name; the raw name itself, counted, when the table does not have it."""
        if raw is None:
            return None
        found = lookup(raw)
        if found is None:
            self.unknown[kind, raw] += 1
        return found or raw

    def machine(self, system: SystemFacts, folder: str | None) -> Machine:
        """The accelerator and its count; a machine without accelerators runs on its processors."""
        count = system.num_accelerators
        if count == 0:
            accelerator = self.slug("accelerator", system.host_processor, hardware.accelerator_slug)
            return Machine(accelerator=accelerator, num_accelerators=0, num_nodes=system.num_nodes)
        raw = system.accelerator
        alias = None
        if raw is not None:
            alias = hardware.accelerator_alias(raw, system.system_name) or hardware.accelerator_alias(
                raw, folder
            )
            if alias is None:
                self.unknown["accelerator", raw] += 1
        if alias is not None and count is not None:
            count = round(count * alias.accelerators_per_count)
        return Machine(
            accelerator=raw if alias is None else alias.slug,
            num_accelerators=count,
            num_nodes=system.num_nodes,
        )

    def rows(self) -> tuple[UnknownName, ...]:
        """The unknown names, sorted, each with the file to edit."""
        return tuple(
            UnknownName(kind=kind, raw=raw, count=count, edit=_EDITS[kind])
            for (kind, raw), count in sorted(self.unknown.items())
        )
