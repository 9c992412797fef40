"""What failures, checkpoints and reclaimed spot nodes make of a training's time.

Rates with sources, goodput.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import ClassVar

from msgspec import Struct

from equipoise.economics import table
from equipoise.intervals import (
    DEVIATE,
    LEVEL,
    MOST_EXPONENT,
    Bar,
    Input,
    Interval,
    moved,
    num_sd_of_few,
    spread,
    stated,
    tails,
)
from equipoise.units import DAY_S, HOUR_S, format_amount, format_duration, format_percent


class ObservedCluster(Struct, frozen=True, kw_only=True):
    """What one cluster saw: hours of one accelerator between two interruptions."""

    name: str
    hours_between: float
    what: str
    source: str


class SpotTrace(Struct, frozen=True, kw_only=True):
    """What spot capacity did to one job: waves of losses per hour while so many nodes were held.

    share: of the nodes held that a wave took, on average; None where only the rate of one node is known.
    """

    name: str
    waves_per_hour: float
    num_nodes: float
    share: float | None
    what: str
    source: str

    @property
    def words(self) -> str:
        """The rate with where it was seen."""
        rate = f"{format_amount(float(f'{self.waves_per_hour:.2g}'))} waves per hour"
        share = "" if self.share is None else f", each of {format_percent(self.share)} of them"
        nodes = "1 node" if self.num_nodes == 1.0 else f"{self.num_nodes:g} nodes"
        return f"{self.name} ({rate} at {nodes}{share})"


class Hazards(Struct, frozen=True, kw_only=True):
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
    share = _over_traces([each.share for each in spot_traces() if each.share is not None])
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
            f"spot: {'; '.join(each.words for each in spot_traces())}",
            f"replacement of spot nodes: {usual['replacement_source']}",
        ),
    )


def _hours_between() -> Interval:
    """Hours between failures of an accelerator in a further cluster."""
    logs = [math.log(each.hours_between) for each in clusters()]
    return spread(math.exp(fmean(logs)), num_sd_of_few(len(logs)) * stdev(logs))


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


# Assumed where the size of a checkpoint is not known: some terabytes at the 2 TB/s of Llama 3's storage.
_UNKNOWN_CHECKPOINT_S = 10.0
# Of the nodes that failures.toml states storage for.
_ACCELERATORS_OF_A_SHARE = 8
# A run that is expected to take so many times its work is not one to plan; nor is a time whose interval is so
# many times wider than that of the work.
_MOST_STRETCH = 10.0
_MOST_WIDENING = 20.0
# An interruption less likely than this lies outside the interval.
_RARE, _ = tails()


class Interrupted(Struct, frozen=True, kw_only=True):
    """A training with all that interrupts it.

    time_s: work / goodput, without a queue; None where it cannot be
    estimated, for the reason `why`. num_interruptions: expected over the run. probability_of_any: of at least
    one. checkpoint_interval_s: work between two checkpoints; None where the run is too short for one to
    pay. checkpoint_bytes: None where the size is not known. lost: shares of time_s that went into
    checkpoints, repeated work and restarts.
    """

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("assumes",)

    time_s: Interval | None
    goodput: Interval | None
    num_interruptions: float | None
    probability_of_any: float
    checkpoint_interval_s: float | None
    checkpoint_bytes: float | None
    checkpoint_s: float
    lost: Mapping[str, float]
    assumes: tuple[str, ...]
    why: str | None = None


def interrupted(
    work: Interval,
    *,
    num_accelerators: int,
    num_nodes: int,
    trained_params: float | None,
    is_spot: bool,
    shrinks: bool = False,
    rates: Hazards | None = None,
) -> Interrupted:
    """The time of a training of so much work, with what interrupts it.

    work: seconds of training steps without any interruption. trained_params: of which checkpoints are
    written; None where not known. is_spot: on capacity that may be reclaimed. shrinks: whether the job goes
    on with the nodes that are left, where that loses less than to wait. rates: in place of those published.
    Assumes that any accelerator or node that drops out stops the whole job; that failures and waves of
    reclaimed spot nodes come at random at constant rates; that the best interval between checkpoints is
    used; that a reclaimed job waits, and is paid for, until it has as many nodes as before, or restarts at
    once at a speed in proportion to the nodes left, and again when they are as many as before. What
    interruptions cost is weighted by the chance that there is any, so that a run which will most likely
    see none takes the time of its work: the value lies between median and mean, and is the mean from about
    three interruptions on. The interval has in it how many interruptions there happen to be. Inputs
    are moved alone: the upper end is too low where they make each other worse (for 512 spot accelerators
    2.2 times the work, where Monte Carlo over all inputs gives 2.6: tests/economics).
    Source: Daly 2006, equations 20 and 37; waves: `wave_hits_per_hour`; Poisson counts.
    """
    known = rates or hazards()
    job = _Job(
        num_accelerators=num_accelerators,
        num_nodes=num_nodes,
        checkpoint_bytes=None
        if trained_params is None
        else known.checkpoint_bytes_per_param * trained_params,
        is_spot=is_spot,
        shrinks=shrinks,
    )
    inputs = tuple(_inputs(job, work, known))
    values = [each.interval.value for each in inputs]
    usual = _outcome(job, values)
    found = _timed(work, usual, tuple(_bars(job, inputs, values)))
    why = found if isinstance(found, str) else None
    time, goodput = (None, None) if isinstance(found, str) else found
    if why is not None:
        kept = is_spot and interrupted(
            work,
            num_accelerators=num_accelerators,
            num_nodes=num_nodes,
            trained_params=trained_params,
            is_spot=False,
            rates=rates,
        )
        why = f"{'not on spot, because' if kept and kept.time_s else 'cannot be estimated:'} {why}"
    return Interrupted(
        time_s=time,
        goodput=goodput,
        num_interruptions=None if why else usual.num_interruptions,
        probability_of_any=-math.expm1(-min(usual.rate_per_s * work.value, MOST_EXPONENT)),
        checkpoint_interval_s=usual.interval_s if usual.checkpoints_s else None,
        checkpoint_bytes=job.checkpoint_bytes,
        checkpoint_s=usual.checkpoint_s,
        lost=_lost(usual),
        assumes=tuple(_assumes(job, known)),
        why=why,
    )


def _span(bar: Bar) -> str:
    """The range of an input, with its unit."""
    if bar.unit == "s":
        return f"{format_duration(bar.low)} to {format_duration(bar.high)}"
    return f"{format_amount(bar.low)} to {format_amount(bar.high)} {bar.unit}".rstrip()


class _Job(Struct, frozen=True, kw_only=True):
    """What a job is, whatever its rates of interruption."""

    num_accelerators: int
    num_nodes: int
    checkpoint_bytes: float | None
    is_spot: bool
    shrinks: bool

    @property
    def num_storage_shares(self) -> float:
        """Nodes that write, as storage rates are stated of: a pod or rack has as many as hosts of eight."""
        return max(self.num_nodes, self.num_accelerators / _ACCELERATORS_OF_A_SHARE)


class _Outcome(Struct, frozen=True, kw_only=True):
    """A run at one set of rates. weight: of what interruptions cost on average, loss_s."""

    work_s: float
    rate_per_s: float
    interval_s: float
    checkpoint_s: float
    checkpoints_s: float
    loss_s: float
    restarts_s: float
    num_interruptions: float
    weight: float

    @property
    def time_s(self) -> float:
        """Work, checkpoints and what interruptions cost."""
        return self.work_s + self.checkpoints_s + self.weight * self.loss_s

    @property
    def by_count(self) -> tuple[float, float]:
        """The time where few and where many of the expected interruptions come."""
        number = self.num_interruptions
        if not 0.0 < number < math.inf or -math.expm1(-number) < _RARE:
            return self.time_s, self.time_s
        reach = DEVIATE * math.sqrt(number)
        few, many = max(0.0, number - reach), max(1.0, number + reach)
        least = self.work_s + self.checkpoints_s
        return least + few / number * self.loss_s, least + many / number * self.loss_s


def _inputs(job: _Job, work: Interval, rates: Hazards) -> Iterator[Input]:
    """In the order that `_outcome` takes them."""
    yield Input(name="work", unit="s", interval=work)
    yield Input(name="time between failures", unit="h per accelerator", interval=rates.hours_between)
    yield Input(name="restart", unit="s", interval=rates.restart_s)
    yield Input(name="storage", unit="B/s per node", interval=rates.storage_byte_per_s_per_node)
    if job.is_spot:
        yield Input(name="waves of reclaimed nodes", unit="per hour", interval=rates.waves_per_hour)
        yield Input(name="share of nodes per wave", unit="", interval=rates.wave_share)
        yield Input(name="replacement of spot nodes", unit="s", interval=rates.replacement_s)


def _bars(job: _Job, inputs: tuple[Input, ...], values: list[float]) -> Iterator[Bar]:
    """Of each input that is not exact, the times at its ends."""
    for place, each in enumerate(inputs):
        low, high = each.interval.low, each.interval.high
        if low < high:
            at_low, at_high = (
                _outcome(job, (*values[:place], end, *values[place + 1 :])).time_s for end in (low, high)
            )
            yield Bar(name=each.name, unit=each.unit, low=low, high=high, at_low=at_low, at_high=at_high)


def _outcome(job: _Job, values: Sequence[float]) -> _Outcome:
    """The run at these values of `_inputs`, which has their order and units.

    Source: Daly 2006, equation 20; a run of one interval and no checkpoint by the same equation. Waits for
    replaced nodes add up, since waves that come while waiting are in the waits that were measured. A wave
    that hits takes wave_share / P(hit) of the nodes on average, which a job that shrinks goes without.
    """
    work_s, hours_between, restart_s, storage_byte_per_s, *of_spot = values
    waves_per_hour, wave_share, replacement_s = of_spot or (0.0, 0.0, 0.0)
    hits = wave_hits_per_hour(job.num_nodes, waves_per_hour=waves_per_hour, wave_share=wave_share)
    rate_per_s = (job.num_accelerators / hours_between + hits) / HOUR_S
    checkpoint_s = _UNKNOWN_CHECKPOINT_S
    if job.checkpoint_bytes is not None:
        checkpoint_s = job.checkpoint_bytes / (storage_byte_per_s * job.num_storage_shares)
    interval_s = best_interval_s(rate_per_s, checkpoint_s)
    pause_s = checkpoint_s if interval_s < work_s else 0.0
    interval_s = min(interval_s, work_s)
    checkpoints_s = work_s / interval_s * pause_s
    running_s = work_s * stretch(interval_s, rate_per_s, checkpoint_s=pause_s, restart_s=restart_s)
    is_endless = math.isinf(running_s)
    number = running_s * rate_per_s
    wait_s = replacement_s
    if job.shrinks and hits:
        lost_share = wave_share * waves_per_hour / hits
        wait_s = min(replacement_s, lost_share * replacement_s + restart_s)
    waits_s = 0.0 if is_endless else running_s * hits / HOUR_S * wait_s
    return _Outcome(
        work_s=work_s,
        rate_per_s=rate_per_s,
        interval_s=interval_s,
        checkpoint_s=checkpoint_s,
        checkpoints_s=checkpoints_s,
        loss_s=max(0.0, running_s - work_s - checkpoints_s) + waits_s,
        restarts_s=number * restart_s + waits_s,
        num_interruptions=number,
        weight=-math.expm1(-number),
    )


def best_interval_s(rate_per_s: float, checkpoint_s: float) -> float:
    """Seconds of work between checkpoints that lose least, also where interruptions are not rare.

    rate_per_s: of interruptions of the whole. Returns infinity where there are none; the mean time to an
    interruption where a checkpoint takes at least twice as long.
    Assumes interruptions come at random.
    Source: Daly 2006, equation 37.

    >>> [round(best_interval_s(1 / (60.0 * hours), 5.0)) for hours in (24, 6)]  # minutes
    [117, 57]
    """
    if rate_per_s <= 0.0:
        return math.inf
    ratio = checkpoint_s * rate_per_s / 2.0
    if ratio >= 1.0:
        return 1.0 / rate_per_s
    young_s = math.sqrt(2.0 * checkpoint_s / rate_per_s)
    return young_s * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - checkpoint_s


def stretch(interval_s: float, rate_per_s: float, *, checkpoint_s: float, restart_s: float) -> float:
    """How many times longer than its work a run takes: checkpoints, repeated work, restarts.

    interval_s: of work between checkpoints. rate_per_s: of interruptions of the whole. Returns infinity
    where it does not end.
    Assumes interruptions come at random, during checkpoints and restarts too.
    Source: Daly 2006, equation 20: M / tau exp(R / M) (exp((tau + C) / M) - 1).

    >>> stretch(1000.0, 0.0, checkpoint_s=10.0, restart_s=60.0)
    1.01
    """
    spent = (interval_s + checkpoint_s) * rate_per_s
    if spent <= 0.0:
        return 1.0 + checkpoint_s / interval_s
    if spent + restart_s * rate_per_s > MOST_EXPONENT:
        return math.inf
    return math.exp(restart_s * rate_per_s) * math.expm1(spent) / (interval_s * rate_per_s)


def _timed(work: Interval, usual: _Outcome, bars: tuple[Bar, ...]) -> tuple[Interval, Interval] | str:
    """Time and goodput, or why they cannot be estimated.

    The error of the work is in the time, of the goodput only what comes on top.
    """
    if usual.time_s > _MOST_STRETCH * work.value:
        return (
            f"with an interruption every {format_duration(1.0 / usual.rate_per_s)} the run "
            f"would take more than {_MOST_STRETCH:g} times its work"
        )
    goodput = work.value / usual.time_s
    value = work.value / goodput  # exactly, to the last digit
    time = moved(value, (*((bar.at_low, bar.at_high) for bar in bars), usual.by_count), level=work.level)
    if time.high / time.low > _MOST_WIDENING * work.high / work.low:
        widest = max(bars, key=lambda bar: bar.effect)
        return (
            f"within the published rates the run takes {format_duration(time.low)} to more "
            f"than {_MOST_WIDENING:g} times that; most of it is {widest.name}, {_span(widest)}"
        )
    others = ((bar.at_low, bar.at_high) for bar in bars if bar.name != "work")
    alone = moved(value, (*others, usual.by_count), level=work.level)
    return time, Interval(
        value=goodput,
        low=min(goodput, work.value / alone.high),
        high=max(goodput, min(1.0, work.value / alone.low)),
        level=work.level,
    )


def _lost(usual: _Outcome) -> dict[str, float]:
    """Shares of the time: writing, repeating work, and restarting with the wait for nodes."""
    if math.isinf(usual.time_s):
        return {"checkpoints": 0.0, "repeated": 0.0, "restarts": 1.0}
    # A restart as long as the time between interruptions is itself cut short, mostly.
    restarts_s = min(usual.restarts_s, usual.loss_s)
    return {
        "checkpoints": usual.checkpoints_s / usual.time_s,
        "repeated": usual.weight * (usual.loss_s - restarts_s) / usual.time_s,
        "restarts": usual.weight * restarts_s / usual.time_s,
    }


def _assumes(job: _Job, rates: Hazards) -> Iterator[str]:
    yield "any accelerator that fails stops the run; interruptions are random"
    yield from rates.basis
    if job.is_spot:
        then = (
            "restarts on those that are left, and again when as many as before are held; all are paid for"
            if job.shrinks
            else "waits, and is paid for, until as many as before are held"
        )
        yield f"spot nodes are reclaimed in waves; the job {then}"
        yield from rates.spot_basis
    if job.checkpoint_bytes is None:
        yield f"a checkpoint takes {_UNKNOWN_CHECKPOINT_S:g} s: the number of trained parameters is not known"
