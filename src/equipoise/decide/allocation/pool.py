"""The pool that jobs share: accelerators of one system, their rates, and the question that each job asks."""

from dataclasses import dataclass

from equipoise.decide.allocation.tariff import Tariff
from equipoise.decide.candidates import rates_of
from equipoise.decide.query import TrainingQuery, query
from equipoise.decide.systems import AskedSystem, asked_systems
from equipoise.economics import DEFAULT_GRID, Rates
from equipoise.errors import UsageError
from equipoise.spec.catalogue import Catalogue, counted_name
from equipoise.spec.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What is shared. question: of a training on it, but for what is trained.

    cluster: the system with all its accelerators. tariff: of electricity; is_rented: whether an
    accelerator-hour has a price too.
    """

    system: AskedSystem
    cluster: Cluster
    question: TrainingQuery
    rates: Rates
    tariff: Tariff | None = None
    is_rented: bool = True

    @property
    def num_accelerators(self) -> int:
        """How many there are."""
        return self.cluster.num_accelerators


def pool_of(
    name: str,
    catalogue: Catalogue,
    *,
    price: float | None = None,
    region: str = DEFAULT_GRID,
    tariff: Tariff | None = None,
) -> Pool:
    """The pool that a text such as "64x h100-sxm5-80gb" names; one node without a number.

    price: US dollars per accelerator-hour, in place of the table's. Raises SpecError for a name that is not
    known, UsageError for a number or price that cannot be.
    """
    count, named = counted_name(name)
    if count == 0:
        raise UsageError(f"--cluster {name!r} has no accelerators; expected 1 or more")
    nodes = catalogue.cluster(named)
    nodes = catalogue.cluster(named, num_accelerators=count or nodes.node_size)
    question = query(
        {
            "workload": "any",
            "accelerator": [named],
            "max_accelerators": nodes.num_accelerators,
            "price": None if price is None else (("", price),),
            "region": region,
        }
    )
    system = asked_systems(question, catalogue)[0]
    return Pool(
        system=system,
        cluster=nodes,
        question=question,
        rates=rates_of(question, system, system.terms[0]),
        tariff=tariff,
        is_rented=tariff is None or price is not None,
    )
