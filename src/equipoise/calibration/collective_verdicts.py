"""Verdicts on measured collectives: whether latency and bandwidth are normal for the machine.

Measurements are compared with published figures and with the performance model under its priors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.bench.collectives import CollectiveRun, CollectiveRuns, Timing, bus_fraction
from equipoise.calibration.collective_runs import (
    CollectiveCurve,
    RunLinks,
    checked_link,
    fit_curve,
    reach_of,
    run_links,
)
from equipoise.errors import EvidenceError
from equipoise.intervals import LEVEL, Interval, with_log_sd
from equipoise.perfmodel.collectives import OPERATIONS
from equipoise.perfmodel.parameters import COLLECTIVE_PRIORS, CollectiveParameters, prior_log_sd
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.links import LinkReach, PublishedCollective, published_collectives
from equipoise.stats import by_key
from equipoise.units import MIB, format_si, whole_percent

# Smaller messages are latency-bound and larger ones bandwidth-bound on every link of the catalogue: half the
# time of 64 KiB on PCIe 3 is 5 us; 16 MiB take 35 us on 480 GB/s.
SMALL_BYTES = 65_536
LARGE_BYTES = 16 * MIB
# Healthy machines of one kind differ by less: two publications on 8 A100 in one node by 3 %, on B200 by 1 %.
PUBLISHED_MARGIN = 0.15
_LIKE_SIZE = 8.0
# gloo runs a full all_reduce and discards the rest: 16 MiB over 1 Gbit/s took 150 ms, all_reduce 142.
GLOO_REDUCES_ALL = ("reduce_scatter",)
# Above this, the processor limits the rate: processes waiting for 1 Gbit/s were busy 20 to 50 % of the time.
BUSY_FRACTION = 0.75
# Operations over rings or trees, for which the model also knows the number of steps of short messages. The
# sends of an all-to-all are not simultaneous: it took 87 us over 8 A100, a ring or tree 35 us.
RINGS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


class CollectiveFit(Struct, frozen=True, kw_only=True):
    """A run and the curve fitted to it."""

    run: CollectiveRun
    curve: CollectiveCurve

    @property
    def bus_byte_per_s(self) -> float | None:
        """Bus bandwidth (busbw) of the largest messages: the rate on each link of a ring."""
        rate = self.curve.byte_per_s
        return None if rate is None else rate.value * bus_fraction(self.run.operation, self.run.num_ranks)

    @property
    def cpu_fractions(self) -> tuple[tuple[int, float], ...]:
        """By size, the median number of cores that a rank kept busy; empty if not measured."""
        by_size = by_key(
            (timing.payload_bytes, timing.cpu_fraction)
            for timing in self.run.timings
            if timing.cpu_fraction is not None
        )
        return tuple((size, median(shares)) for size, shares in sorted(by_size.items()))


class Verdict(Struct, frozen=True, kw_only=True):
    """Whether one measured figure is normal.

    quantity: `bus_byte_per_s` of a large message, or `latency_s` of a small one. verdict: `normal`, `slow`,
    `fast`, or `unknown` without a reference. expected: with its interval low to high at LEVEL. link: the link
    between the ranks, with its rate if known. because: the reason in one sentence. evidence: sources.
    """

    run: CollectiveRun
    quantity: str
    payload_bytes: int
    measured: float
    verdict: str = "unknown"
    because: str = ""
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    link: str | None = None
    link_byte_per_s: float | None = None
    evidence: tuple[str, ...] = ()

    @property
    def moved_bytes(self) -> float:
        """Bytes of the message, scaled as for busbw."""
        return self.payload_bytes * bus_fraction(self.run.operation, self.run.num_ranks)


class Links(Struct, frozen=True, kw_only=True):
    """Results from files of timed collectives: fits, runs without a fit (with the reason), verdicts."""

    reading: CollectiveRuns
    fits: tuple[CollectiveFit, ...]
    unfitted: tuple[tuple[CollectiveRun, str], ...]
    verdicts: tuple[Verdict, ...]


def expect_runs(reading: CollectiveRuns) -> None:
    """Raise EvidenceError, with the reasons, if no row of the files can be used."""
    if not reading.runs:
        reasons = "; ".join(f"{each['first']} ({each['count']} times)" for each in reading.rejected.rows())
        raise EvidenceError(
            f"no row of the files can be used: {reasons or 'they hold no result'}",
            missing=("results with sizes and times as nccl-tests and rccl-tests write them",),
        )


def judged(
    reading: CollectiveRuns,
    *,
    accelerator: str | None = None,
    link: str | None = None,
    catalogue: Catalogue | None = None,
) -> Links:
    """Fits and verdicts for every run that was read.

    accelerator: an accelerator or system; by default what the files name. link: class of the weakest link
    between ranks, as `nvidia-smi topo -m` names it; by default the usual one.
    catalogue: the shipped one by default.
    Raises SpecError for an unknown accelerator or link, EvidenceError if no run was read.
    """
    expect_runs(reading)
    named = None if link is None else checked_link(link)
    fits, unfitted = list[CollectiveFit](), list[tuple[CollectiveRun, str]]()
    verdicts = list[Verdict]()
    for run in reading.runs:
        joined_by = named or run.link
        try:
            fits.append(CollectiveFit(run=run, curve=fit_curve(*_points(run.timings))))
        except EvidenceError as err:
            unfitted.append((run, str(err)))
        found = run_links(run, accelerator=accelerator, link=joined_by, catalogue=catalogue)
        verdicts.extend(_verdicts(run, found, joined_by))
    return Links(reading=reading, fits=tuple(fits), unfitted=tuple(unfitted), verdicts=tuple(verdicts))


def _points(rows: Sequence[Timing]) -> tuple[list[float], list[float]]:
    """Sizes and seconds of all repetitions of the rows."""
    pairs = [(float(row.payload_bytes), seconds) for row in rows for seconds in row.seconds]
    return [size for size, _ in pairs], [seconds for _, seconds in pairs]


def _median_s(rows: Sequence[Timing]) -> float:
    return float(np.median([seconds for row in rows for seconds in row.seconds]))


def _verdicts(run: CollectiveRun, machine: RunLinks | str, link: str | None) -> Iterator[Verdict]:
    """Verdicts on the largest and the smallest messages, if they are large and small enough."""
    largest = max(timing.payload_bytes for timing in run.timings)
    smallest = min(timing.payload_bytes for timing in run.timings)
    if largest >= LARGE_BYTES:
        took = _median_s([each for each in run.timings if each.payload_bytes == largest])
        rate = largest * bus_fraction(run.operation, run.num_ranks) / took
        found = Verdict(run=run, quantity="bus_byte_per_s", payload_bytes=largest, measured=rate)
        stated = reach_of(run, machine, link)
        if stated is not None and link is not None:
            yield _verdict_by_link(found, stated, link)
        else:
            yield _bandwidth_verdict(found, machine)
    if smallest <= SMALL_BYTES and run.operation in RINGS:
        small = [each for each in run.timings if each.payload_bytes <= smallest * 4]
        found = Verdict(run=run, quantity="latency_s", payload_bytes=smallest, measured=_median_s(small))
        yield _latency_verdict(found, machine)


def _verdict_by_link(found: Verdict, stated: LinkReach, link: str) -> Verdict:
    """The verdict on the largest messages from the link class alone, by spec.links."""
    expected = Interval(value=stated.byte_per_s, low=stated.low, high=stated.high, level=LEVEL)
    words = _network_words(found, link) if stated.path == "network" else _class_words(link)
    on = replace(found, link=link, link_byte_per_s=stated.stated_byte_per_s[1], evidence=(stated.source,))
    return _compared(on, expected, words.__getitem__)


def _compared(found: Verdict, expected: Interval, because: Callable[[str], str]) -> Verdict:
    """The verdict on a figure with the given expectation. because: maps each verdict to its reason."""
    verdict = "normal"
    if not expected.low <= found.measured <= expected.high:
        is_more, more_is_faster = found.measured > expected.high, found.quantity == "bus_byte_per_s"
        verdict = "fast" if is_more == more_is_faster else "slow"
    return replace(
        found,
        verdict=verdict,
        because=because(verdict),
        expected=expected.value,
        low=expected.low,
        high=expected.high,
    )


def _class_words(link: str) -> Mapping[str, str]:
    return {
        "normal": f"as expected of links of class {link}",
        "slow": f"less than expected of links of class {link}: is the slot full width, is ACS off, "
        "do more than two ranks share a path?",
        "fast": f"more than expected of links of class {link}: is there a faster path between these ranks?",
    }


def _network_words(found: Verdict, link: str) -> Mapping[str, str]:
    """Reasons of verdicts on hosts over a network; for `slow`, whether the processor is the limit."""
    run = found.run
    busy = [each.cpu_fraction for each in run.timings if each.payload_bytes == found.payload_bytes]
    shares = [each for each in busy if each is not None]
    share = median(shares) if shares else 0.0
    slow = f"less than expected of a network of {link}: "
    if run.backend == "gloo" and run.operation in GLOO_REDUCES_ALL:
        slow += "gloo sums the whole payload on every rank, as for all_reduce"
    elif share >= BUSY_FRACTION:
        slow += (
            f"ranks computed {whole_percent(share)} of the time: the processor is the limit, not the network"
        )
    else:
        slow += f"is it shared, and are its frames small? Ranks computed {whole_percent(share)} of the time"
    return {
        "normal": f"as expected of a network of {link}, one way",
        "slow": slow,
        "fast": f"more than expected of a network of {link}: is that its rate, do all ranks "
        "communicate over it?",
    }


def _prior_s(about: Verdict, machine: RunLinks, *, switch_reduces: bool = True) -> Interval | None:
    """The model's expected seconds for one message under its priors; None if it cannot model it."""
    timer = OPERATIONS.get(about.run.operation)
    if timer is None:
        return None
    wires = machine.wires if switch_reduces else replace(machine.wires, switch_reduces=0.0)

    def seconds(values: Mapping[str, Any]) -> float:
        return float(timer(float(about.payload_bytes), machine.group, wires, CollectiveParameters(**values)))

    return with_log_sd(seconds({}), float(prior_log_sd(seconds, COLLECTIVE_PRIORS)))


def _latency_verdict(found: Verdict, machine: RunLinks | str) -> Verdict:
    """The verdict on the smallest messages, from the model alone, as published ones vary with software."""
    prior_s = None if isinstance(machine, str) else _prior_s(found, machine)
    if isinstance(machine, str) or prior_s is None:
        return _unknown(found, machine)
    words = {
        "normal": "as launches and steps between ranks take on such links",
        "slow": "more than launches and steps between ranks explain: check for a busy host, "
        "unpinned processes, or a slower network than intended",
        "fast": "less than usual for such links: fewer steps, or CUDA graphs (-G)",
    }
    on = _on_machine(found, machine, ("the performance model, not fitted",))
    return _compared(on, prior_s, words.__getitem__)


def _on_machine(found: Verdict, machine: RunLinks, evidence: Sequence[str]) -> Verdict:
    return replace(found, link=machine.link, link_byte_per_s=machine.bus_byte_per_s, evidence=tuple(evidence))


def _bandwidth_verdict(found: Verdict, machine: RunLinks | str) -> Verdict:
    """The verdict on the largest messages: from published figures of such machines, else from the model."""
    if isinstance(machine, str):
        return _unknown(found, machine)
    published, prior_s, moved = _published(found, machine), _prior_s(found, machine), found.moved_bytes
    prior = prior_s and Interval(
        value=moved / prior_s.value, low=moved / prior_s.high, high=moved / prior_s.low, level=LEVEL
    )
    expected = _fastest(published) if published else prior
    if expected is None:
        return _unknown(found, machine)
    evidence = [
        f"published {format_si(each.bus_byte_per_s, 'B/s', digits=4)}: {each.source}" for each in published
    ]
    if prior is not None:
        rate = format_si(prior.value, "B/s", digits=4)
        evidence.append(f"the performance model, not fitted: {rate}")
    on = _on_machine(found, machine, evidence)
    return _compared(on, expected, partial(_reason, found, machine))


def _fastest(published: Sequence[PublishedCollective]) -> Interval:
    """The fastest of the published figures, with the margin that counts as normal."""
    rate = max(each.bus_byte_per_s for each in published)
    return Interval(
        value=rate, low=rate * (1 - PUBLISHED_MARGIN), high=rate * (1 + PUBLISHED_MARGIN), level=LEVEL
    )


def _unknown(found: Verdict, machine: RunLinks | str) -> Verdict:
    if isinstance(machine, str):
        return replace(found, because=machine)
    return replace(found, because=f"no reference values for {found.run.operation}", link=machine.link)


def _published(about: Verdict, machine: RunLinks) -> list[PublishedCollective]:
    """Published figures for the same operation, chip and group, of similar size or stated as a peak."""
    return [
        each
        for each in published_collectives()
        if each.operation == about.run.operation
        and each.num_ranks == about.run.num_ranks
        and each.num_nodes == machine.num_nodes
        and machine.is_like(each.accelerator, each.link)
        and _is_like_size(each, about.payload_bytes)
    ]


def _is_like_size(published: PublishedCollective, payload_bytes: int) -> bool:
    """Whether a figure is for a similar size; a peak applies to all bandwidth-bound sizes."""
    if published.payload_bytes is None:
        return payload_bytes >= LARGE_BYTES * _LIKE_SIZE
    return 1 / _LIKE_SIZE <= payload_bytes / published.payload_bytes <= _LIKE_SIZE


def _reason(found: Verdict, machine: RunLinks, verdict: str) -> str:
    """The reason for a verdict on bandwidth."""
    share = found.measured / machine.bus_byte_per_s
    if verdict == "fast":
        return "faster than such machines: are accelerator, link and number of ranks as assumed here?"
    if verdict == "normal" and share > 1:
        return "more than the link carries one way, which is possible where the switch reduces (NVLink SHARP)"
    if verdict == "normal":
        return f"{whole_percent(share)} of what {machine.link} carries one way, as such machines reach"
    suspect = _likely_cause(found, machine)
    return (
        suspect
        or f"{whole_percent(share)} of what {machine.link} carries one way: less than such machines reach"
    )


def _likely_cause(found: Verdict, machine: RunLinks) -> str | None:
    """A likely cause of a slow rate, from the known limit that it matches; None if it matches none."""
    measured = found.measured
    if machine.num_nodes > 1:
        one_card = measured <= machine.card_byte_per_s
        return (
            "no more than one network card carries: are all cards used, each by its nearest ranks?"
            if one_card
            else None
        )
    if machine.wires.switch_reduces:
        ring = _prior_s(found, machine, switch_reduces=False)
        if ring is not None and measured >= found.moved_bytes / ring.high:
            return (
                "as a ring algorithm takes: the switch does not reduce; is NVLink SHARP "
                "(NCCL_NVLS_ENABLE) off?"
            )
    host_byte_per_s = machine.cluster.accelerator.host_byte_per_s or 0
    if machine.cluster.topology != "host" and measured <= host_byte_per_s:
        return "no more than the host's PCIe carries: do ranks communicate over it instead of their link?"
    return None
