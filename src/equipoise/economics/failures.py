"""How often accelerators fail and spot capacity is reclaimed, and what that takes, with sources."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

from equipoise.economics.prices import table
from equipoise.economics.uncertainty import LEVEL, num_sd, spread, stated
from equipoise.stats import Interval
from equipoise.units import DAY_S, HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster:
    """What one cluster saw: hours of one accelerator between two interruptions."""

    name: str
    hours_between: float
    what: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTrace:
    """What spot capacity did to one job: waves of losses per hour while so many nodes were held.

    share: of the nodes held that a wave took, on average; None where only the rate of one node is known.
    """

    name: str
    waves_per_hour: float
    num_nodes: float
    share: float | None
    what: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazards:
    """Rates of interruption, and what an interruption costs.

    hours_between: of one accelerator with its share of host and network, between failures; infinite for
    none. storage_byte_per_s_per_node: into which checkpoints go. waves_per_hour: of reclaimed spot capacity.
    wave_share: chance that a wave takes a given node. replacement_s: until lost spot nodes are replaced.
    """

    hours_between: Interval
    restart_s: Interval
    storage_byte_per_s_per_node: Interval
    checkpoint_bytes_per_param: float
    waves_per_hour: Interval
    wave_share: Interval
    replacement_s: Interval
    basis: tuple[str, ...]
    spot_basis: tuple[str, ...]


def clusters() -> tuple[ObservedCluster, ...]:
    """Every cluster whose interruptions were published."""
    return tuple(
        ObservedCluster(
            name=row["name"],
            hours_between=row["accelerators"] * row["days"] * DAY_S / HOUR_S / row["interruptions"],
            what=row["what"],
            source=row["source"],
        )
        for row in table("failures.toml")["cluster"]
    )


def spot_traces() -> tuple[SpotTrace, ...]:
    """Every published rate of reclaimed spot capacity."""
    return tuple(
        SpotTrace(
            name=row["name"],
            waves_per_hour=row["waves"] / row["hours"],
            num_nodes=float(row["nodes"]),
            share=row.get("share"),
            what=row["what"],
            source=row["source"],
        )
        for row in table("failures.toml")["spot"]
    )


def wave_hits_per_hour(num_nodes: float, *, waves_per_hour: float, wave_share: float) -> float:
    """Waves per hour that take at least one of a job's nodes; never more than there are waves.

    wave_share: chance that a wave takes a given node, 0 to 1.
    Assumes waves come at random, and that within a wave nodes are taken independently of each other.
    Source: the complement of no node being taken, 1 - (1 - share)^nodes.

    >>> wave_hits_per_hour(1, waves_per_hour=0.5, wave_share=0.2)
    0.1
    >>> round(wave_hits_per_hour(64, waves_per_hour=0.5, wave_share=0.2), 6)
    0.5
    """
    if wave_share >= 1.0:
        return waves_per_hour
    return waves_per_hour * -math.expm1(num_nodes * math.log1p(-wave_share))


@cache
def hazards() -> Hazards:
    """What is usual.

    Assumes the next cluster is as those published: hours between failures log-normal over clusters, spot
    rates within those published.
    """
    usual = table("failures.toml")["usual"]
    share = _wave_share()
    return Hazards(
        hours_between=_hours_between(),
        restart_s=stated(usual["restart_s"]),
        storage_byte_per_s_per_node=stated(usual["storage_byte_per_s_per_node"]),
        checkpoint_bytes_per_param=float(usual["checkpoint_bytes_per_param"]),
        waves_per_hour=_waves_per_hour(share.value),
        wave_share=share,
        replacement_s=stated(usual["replacement_s"]),
        basis=(
            f"failures: {', '.join(each.name for each in clusters())}",
            f"restart: {usual['restart_source']}",
            f"storage: {usual['storage_source']}",
            f"checkpoint: {usual['checkpoint_source']}",
        ),
        spot_basis=(
            f"spot: {', '.join(each.name for each in spot_traces())}",
            f"replacement of spot nodes: {usual['replacement_source']}",
        ),
    )


def _hours_between() -> Interval:
    """Hours between failures of an accelerator in a further cluster."""
    logs = [math.log(each.hours_between) for each in clusters()]
    return spread(math.exp(fmean(logs)), num_sd() * stdev(logs))


def _wave_share() -> Interval:
    """Share of the nodes that a wave takes, over traces."""
    return _over_traces([each.share for each in spot_traces() if each.share is not None])


def _waves_per_hour(share: float) -> Interval:
    """Waves per hour, each trace's rate being that at the number of nodes it held."""
    return _over_traces(
        [
            each.waves_per_hour / wave_hits_per_hour(each.num_nodes, waves_per_hour=1.0, wave_share=share)
            for each in spot_traces()
        ]
    )


def _over_traces(values: Sequence[float]) -> Interval:
    """The geometric mean and the extremes: too few and too unlike for a distribution."""
    usual = math.exp(fmean(math.log(each) for each in values))
    return Interval(value=usual, low=min(values), high=max(values), level=LEVEL)
