"""How often accelerators and rented nodes drop out of a training, and what that takes, with sources."""

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, stdev

from equipoise.economics.tables import table
from equipoise.economics.uncertain import LEVEL, exact, spread, stated
from equipoise.errors import UsageError
from equipoise.stats import Interval
from equipoise.units import DAY_S, HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What one cluster saw: hours of one accelerator between two interruptions."""

    name: str
    hours_between: float
    what: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazards:
    """What a training has to reckon with.

    hours_between: of one accelerator with its share of host and network, between failures.
    preemptions_per_node_hour: of spot capacity. storage_byte_per_s_per_node: into which checkpoints go.
    """

    hours_between: Interval
    restart_s: Interval
    storage_byte_per_s_per_node: Interval
    checkpoint_bytes_per_param: float
    preemptions_per_node_hour: Interval
    basis: tuple[str, ...]


def clusters() -> tuple[Cluster, ...]:
    """Every cluster whose interruptions were published."""
    return tuple(
        Cluster(
            name=row["name"],
            hours_between=row["accelerators"] * row["days"] * DAY_S / HOUR_S / row["interruptions"],
            what=row["what"],
            source=row["source"],
        )
        for row in table("failures.toml")["cluster"]
    )


def hazards(*, hours_between: float | None = None, preemptions_per_node_hour: float | None = None) -> Hazards:
    """What is usual, or the user's own rates.

    hours_between: of one accelerator between failures. Raises UsageError for what is no rate.
    Assumes the next cluster is as those published: hours between failures log-normal over clusters.
    """
    for option, rate in (("--mtbf", hours_between), ("--preemptions", preemptions_per_node_hour)):
        if rate is not None and not 0.0 < rate < math.inf:
            raise UsageError(f"{option} is {rate!r}; expected a number above 0")
    usual = table("failures.toml")["usual"]
    between, preempted = _hours_between(), stated(usual["preemptions_per_node_hour"])
    return Hazards(
        hours_between=between if hours_between is None else exact(hours_between),
        restart_s=stated(usual["restart_s"]),
        storage_byte_per_s_per_node=stated(usual["storage_byte_per_s_per_node"]),
        checkpoint_bytes_per_param=float(usual["checkpoint_bytes_per_param"]),
        preemptions_per_node_hour=(
            preempted if preemptions_per_node_hour is None else exact(preemptions_per_node_hour)
        ),
        basis=(
            f"failures: {', '.join(each.name for each in clusters())}"
            if hours_between is None
            else "failures: your own rate",
            f"restart: {usual['restart_source']}",
            f"storage: {usual['storage_source']}",
            f"checkpoint: {usual['checkpoint_source']}",
            f"preemption: {usual['preemption_source']}"
            if preemptions_per_node_hour is None
            else "preemption: your own rate",
        ),
    )


@cache
def _hours_between() -> Interval:
    """Hours between failures of an accelerator in a further cluster."""
    logs = [math.log(each.hours_between) for each in clusters()]
    centre = fmean(logs)
    reach = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0) * stdev(logs)
    return spread(math.exp(centre), reach)
