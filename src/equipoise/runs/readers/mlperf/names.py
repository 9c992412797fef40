"""Raw names of an entry to slugs of the catalogue; what the catalogue does not have stays raw, counted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from equipoise.runs.reader import UnknownName
from equipoise.runs.readers.mlperf.system import SystemFacts
from equipoise.spec import hardware, names, workload
from equipoise.spec.catalogue import Catalogue, shipped

# Real names stay below 200 characters; longer ones are cut, since they are shown and stored.
MAX_NAME_CHARACTERS = 200

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

    catalogue: Catalogue = field(default_factory=shipped)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)

    def slug(self, kind: str, raw: str | None, lookup: Callable[[str], str | None]) -> str | None:
        """The slug of a raw name; the raw name itself, counted, when the table does not have it."""
        if raw is None:
            return None
        found = lookup(raw)
        if found is None:
            raw = raw if len(raw) <= MAX_NAME_CHARACTERS else raw[:MAX_NAME_CHARACTERS] + "..."
            self.unknown[kind, raw] += 1
        return found or raw

    def machine(self, system: SystemFacts, folder: str | None) -> Machine:
        """The accelerator and its count; without accelerators, the processors of all nodes are these."""
        count = system.num_accelerators
        if count == 0:
            return Machine(
                accelerator=self.slug("accelerator", system.host_processor, self.catalogue.accelerator_slug),
                num_accelerators=system.num_host_processors,
                num_nodes=system.num_nodes,
            )
        raw, alias = system.accelerator, None
        if raw is not None:
            by_name = self.catalogue.accelerator_alias(raw, system.system_name)
            alias = by_name or self.catalogue.accelerator_alias(raw, folder)
        if alias is not None and count is not None:
            count = round(count * alias.accelerators_per_count)
        return Machine(
            accelerator=alias.slug if alias else self.slug("accelerator", raw, lambda _: None),
            num_accelerators=count,
            num_nodes=system.num_nodes,
        )

    def rows(self) -> tuple[UnknownName, ...]:
        """The unknown names, sorted, each with the file to edit."""
        return tuple(
            UnknownName(kind=kind, raw=raw, count=count, edit=_EDITS[kind])
            for (kind, raw), count in sorted(self.unknown.items())
        )
