"""Time and goodput of a training with failures, checkpoints and reclaimed spot nodes; rates with sources."""

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
    """A published cluster's accelerator-hours between interruptions."""

    name: str
    hours_between: float
    what: str
    source: str


class SpotTrace(Struct, frozen=True, kw_only=True):
    """Published loss of spot nodes by one job: waves of losses per hour while it held num_nodes.

    share: mean share of the nodes lost per wave; None where only the rate of a single node is known.
    """

    name: str
    waves_per_hour: float
    num_nodes: float
    share: float | None
    what: str
    source: str

    @property
    def words(self) -> str:
        """Text with the rate and its origin."""
        rate = f"{format_amount(float(f'{self.waves_per_hour:.2g}'))} waves per hour"
        share = "" if self.share is None else f", each of {format_percent(self.share)} of them"
        nodes = "1 node" if self.num_nodes == 1.0 else f"{self.num_nodes:g} nodes"
        return f"{self.name} ({rate} at {nodes}{share})"


class Hazards(Struct, frozen=True, kw_only=True):
    """Rates and costs of interruptions.

    hours_between: accelerator-hours between failures, including host and network; infinite for none.
    storage_byte_per_s_per_node: rate of writing checkpoints. waves_per_hour: of reclaimed spot capacity.
    wave_share: probability that a wave takes a given node. replacement_s: until lost spot nodes are replaced.
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
    """All clusters with published interruptions."""
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
    """All published rates of reclaimed spot capacity."""
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
    """Waves per hour that take at least one of a job's nodes.

    wave_share: probability that a wave takes a given node, 0 to 1.
    Assumes waves are random, and take nodes independently.
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
    """The default rates, from published ones.

    Assumes a new cluster is like published ones: hours between failures are log-normal over clusters, and
    spot rates within the published range.
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
    """Prediction interval of accelerator-hours between failures in a new cluster."""
    logs = [math.log(each.hours_between) for each in clusters()]
    return spread(math.exp(fmean(logs)), num_sd_of_few(len(logs)) * stdev(logs))


def _waves_per_hour(share: float) -> Interval:
    """Waves per hour, corrected in each trace for waves that hit none of its nodes."""
    return _over_traces(
        [
            each.waves_per_hour / wave_hits_per_hour(each.num_nodes, waves_per_hour=1.0, wave_share=share)
            for each in spot_traces()
        ]
    )


def _over_traces(values: Sequence[float]) -> Interval:
    """The geometric mean and the extremes; the values are too few and too different for a distribution."""
    usual = math.exp(fmean(math.log(each) for each in values))
    return Interval(value=usual, low=min(values), high=max(values), level=LEVEL)


# Assumed for checkpoints of unknown size: some terabytes at the 2 TB/s of Llama 3's storage.
_UNKNOWN_CHECKPOINT_S = 10.0
# Accelerators per node for which failures.toml states the storage rate.
_ACCELERATORS_PER_STORAGE_SHARE = 8
# A run expected to take more than this many times its work is not planned, nor one whose time has an interval
# wider by more than this factor than that of the work.
_MAX_STRETCH = 10.0
_MAX_WIDENING = 20.0
# Interruptions less likely than this are outside the interval.
_RARE, _ = tails()


class Interrupted(Struct, frozen=True, kw_only=True):
    """A training with its interruptions.

    time_s: work / goodput, without a queue; None where it cannot be estimated, with the reason in `why`.
    num_interruptions: expected over the run. probability_of_any: of at least one. checkpoint_interval_s: work
    between two checkpoints; None if the run is too short for one to pay. checkpoint_bytes: None where
    unknown. lost: shares of time_s spent on checkpoints, repeated work and restarts.
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
    """The time of a training with its interruptions.

    work: seconds of training steps without interruptions. trained_params: in checkpoints; None: unknown.
    is_spot: whether capacity may be reclaimed. shrinks: whether the job continues on the remaining nodes,
    where that loses less than waiting. rates: replace the published ones.
    Assumes the loss of any accelerator or node stops the job; failures and waves of reclaimed spot nodes are
    random with constant rates; the best checkpoint interval is used; after a wave a job waits, and is paid
    for, until it has as many nodes as before, or restarts at once at a speed proportional to the remaining
    nodes, and again when all are replaced. The cost of interruptions is weighted by the probability of any,
    so that a run with most likely none takes the time of its work: the value is between median and mean, and
    the mean from about three interruptions up. The interval includes the random number of interruptions.
    Inputs are varied one at a time, so the upper end is too low where they interact (for 512 spot
    accelerators 2.2 times the work, against 2.6 by Monte Carlo over all inputs: tests/economics).
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


def _range_text(bar: Bar) -> str:
    """Text with the range of an input and its unit."""
    if bar.unit == "s":
        return f"{format_duration(bar.low)} to {format_duration(bar.high)}"
    return f"{format_amount(bar.low)} to {format_amount(bar.high)} {bar.unit}".rstrip()


class _Job(Struct, frozen=True, kw_only=True):
    """Properties of a job that do not depend on rates of interruption."""

    num_accelerators: int
    num_nodes: int
    checkpoint_bytes: float | None
    is_spot: bool
    shrinks: bool

    @property
    def num_storage_shares(self) -> float:
        """Nodes that write checkpoints; pods and racks count as hosts of eight, for which rates are known."""
        return max(self.num_nodes, self.num_accelerators / _ACCELERATORS_PER_STORAGE_SHARE)


class _Outcome(Struct, frozen=True, kw_only=True):
    """A run at one set of rates. loss_s: mean cost of interruptions. weight: probability of any."""

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
        """Work, checkpoints and the weighted cost of interruptions."""
        return self.work_s + self.checkpoints_s + self.weight * self.loss_s

    @property
    def by_count(self) -> tuple[float, float]:
        """The times with few and with many interruptions, at the ends of the interval of their number."""
        number = self.num_interruptions
        if not 0.0 < number < math.inf or -math.expm1(-number) < _RARE:
            return self.time_s, self.time_s
        reach = DEVIATE * math.sqrt(number)
        few, many = max(0.0, number - reach), max(1.0, number + reach)
        least = self.work_s + self.checkpoints_s
        return least + few / number * self.loss_s, least + many / number * self.loss_s


def _inputs(job: _Job, work: Interval, rates: Hazards) -> Iterator[Input]:
    """The inputs, in the order in which `_outcome` takes them."""
    yield Input(name="work", unit="s", interval=work)
    yield Input(name="time between failures", unit="h per accelerator", interval=rates.hours_between)
    yield Input(name="restart", unit="s", interval=rates.restart_s)
    yield Input(name="storage", unit="B/s per node", interval=rates.storage_byte_per_s_per_node)
    if job.is_spot:
        yield Input(name="waves of reclaimed nodes", unit="per hour", interval=rates.waves_per_hour)
        yield Input(name="share of nodes per wave", unit="", interval=rates.wave_share)
        yield Input(name="replacement of spot nodes", unit="s", interval=rates.replacement_s)


def _bars(job: _Job, inputs: tuple[Input, ...], values: list[float]) -> Iterator[Bar]:
    """Yield, for each input that is not exact, the times at the ends of its interval."""
    for place, each in enumerate(inputs):
        low, high = each.interval.low, each.interval.high
        if low < high:
            at_low, at_high = (
                _outcome(job, (*values[:place], end, *values[place + 1 :])).time_s for end in (low, high)
            )
            yield Bar(name=each.name, unit=each.unit, low=low, high=high, at_low=at_low, at_high=at_high)


def _outcome(job: _Job, values: Sequence[float]) -> _Outcome:
    """The run at these values, in the order and units of `_inputs`.

    Source: Daly 2006, equation 20, also for a run of one interval without checkpoint. Waits for replaced
    nodes add up, because measured waits include waves during the wait. A wave that hits takes wave_share /
    P(hit) of the nodes on average, without which a shrinking job continues.
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
    """The best work in seconds between checkpoints, also for frequent interruptions.

    rate_per_s: of interruptions of the whole job. Returns infinity without interruptions, and the mean time
    to an interruption if a checkpoint takes at least twice as long.
    Assumes random interruptions.
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
    """Time of a run over its work, with checkpoints, repeated work and restarts.

    interval_s: work between checkpoints. rate_per_s: of interruptions of the whole job. Returns infinity if
    it never ends.
    Assumes random interruptions, also during checkpoints and restarts.
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

    The time includes the uncertainty of the work, the goodput only that of the rest.
    """
    if usual.time_s > _MAX_STRETCH * work.value:
        return (
            f"with an interruption every {format_duration(1.0 / usual.rate_per_s)} the run "
            f"would take more than {_MAX_STRETCH:g} times its work"
        )
    goodput = work.value / usual.time_s
    value = work.value / goodput  # exactly, to the last digit
    time = moved(value, (*((bar.at_low, bar.at_high) for bar in bars), usual.by_count), level=work.level)
    if time.high / time.low > _MAX_WIDENING * work.high / work.low:
        widest = max(bars, key=lambda bar: bar.effect)
        return (
            f"within the published rates the run takes {format_duration(time.low)} to more "
            f"than {_MAX_WIDENING:g} times that; most of it is {widest.name}, {_range_text(widest)}"
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
    """Shares of the time lost to checkpoints, repeated work, and restarts including waits for nodes."""
    if math.isinf(usual.time_s):
        return {"checkpoints": 0.0, "repeated": 0.0, "restarts": 1.0}
    # Restarts as long as the time between interruptions are mostly interrupted themselves.
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
