"""What forms offer to choose from: the names of the catalogue and of its tables, in groups."""

from functools import cache, lru_cache

from equipoise.advice.validation.profiles import profiles
from equipoise.economics.grids import DEFAULT_GRID
from equipoise.economics.tables import table
from equipoise.spec.catalogue import Catalogue
from equipoise.web.controls import Choice, Group

_MOST_CATALOGUES = 8
OTHERS = "Other accelerators"
KINDS = {"gpu": "GPUs", "tpu": "TPUs", "npu": OTHERS, "ipu": OTHERS, "cpu": "CPUs"}


@lru_cache(maxsize=_MOST_CATALOGUES)
def workload_groups(catalogue: Catalogue) -> tuple[Group, ...]:
    """Workloads whose work is known, those of MLPerf first."""
    counted = [each for each in catalogue.workloads() if each.train_flop_per_sample is not None]
    rounds = [each for each in counted if each.first_round is not None]
    others = [each for each in counted if each.first_round is None]
    return tuple(
        Group(title=title, choices=tuple(Choice(value=each.slug, label=each.title) for each in group))
        for title, group in (("MLPerf Training", rounds), ("Other models", others))
    )


@lru_cache(maxsize=_MOST_CATALOGUES)
def system_groups(catalogue: Catalogue) -> tuple[Group, ...]:
    """Systems by name, then accelerators, which sit in their usual node."""
    named = tuple(Choice(value=each.slug, label=each.title) for each in catalogue.systems())
    by_kind: dict[str, list[Choice]] = {}
    for each in catalogue.accelerators():
        by_kind.setdefault(KINDS[each.kind], []).append(Choice(value=each.slug, label=each.title))
    groups = (Group(title=title, choices=tuple(choices)) for title, choices in by_kind.items())
    return (Group(title="Systems", choices=named), *groups)


@cache
def regions() -> tuple[Choice, ...]:
    """Regions whose electricity is known, the world first."""
    known = sorted(table("grids.toml")["kg_co2_per_kwh"], key=lambda name: (name != DEFAULT_GRID, name))
    return tuple(Choice(value=name, label=name.replace("_", " ").capitalize()) for name in known)


@cache
def calibrations() -> tuple[Choice, ...]:
    """Calibrations of the performance model."""
    names = (*(each.name for each in profiles()), "priors")
    return tuple(Choice(value=name, label=name) for name in names)
