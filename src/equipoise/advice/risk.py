"""What failures, checkpoints, preemption and the queue make of a training's time and money, on each terms."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.economics import Price, PriceTerms, price
from equipoise.economics.failures import Hazards, hazards
from equipoise.economics.prices import TERMS
from equipoise.economics.uncertain import Input, Tornado, Values, drawn, exact, propagated, tornado
from equipoise.errors import UsageError
from equipoise.perfmodel.goodput import TYPICAL_FAILURES, best_interval_s, stretch
from equipoise.stats import Interval
from equipoise.units import HOUR_S

# A run that takes so many times its work does not end.
_ENDLESS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """A training on one kind of terms, with all that comes between.

    price: None where none is known; money is None then. work: the time of steps alone. num_interruptions:
    over the run, chance_of_any: of at least one. checkpoint_interval_s: of work between two checkpoints; None
    where the run is too short for one to pay. lost: shares of the paid time that went into checkpoints, work
    done twice and restarts. elapsed: with the queue. chance_in_time: of the deadline; None without one.
    tornado: of the money, or of the elapsed time where no price is known.
    """

    terms: PriceTerms
    price: Price | None
    num_accelerators: int
    work: Interval
    num_interruptions: Interval
    chance_of_any: float
    checkpoint_interval_s: float | None
    checkpoint_bytes: float | None
    checkpoint_s: Interval
    lost: Mapping[str, float]
    elapsed: Interval
    money: Interval | None
    chance_in_time: float | None
    tornado: Tornado
    assumes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undertaking:
    """A training to rent accelerators for.

    work: the time of steps alone. trained_params: of which checkpoints are written; None where not known.
    price: of the rates it was planned by; the user's own one takes the place of all others.
    """

    accelerator: str
    num_accelerators: int
    node_size: int
    work: Interval
    trained_params: float | None
    price: Price | None


def risks(
    found: Undertaking,
    *,
    queue_s: Interval | None = None,
    deadline_s: float | None = None,
    usual: Hazards | None = None,
) -> tuple[Risk, ...]:
    """The expected time and money of a training on each terms that have a price; on demand where none has.

    queue_s: from asking for the accelerators until they are there. usual: rates of failure in place of those
    published. Raises UsageError for a queue or deadline that is none.
    Assumes any accelerator stops all; failures come at random, with one rate, and so do preemptions of nodes;
    a lost node is replaced at once.
    Source: Daly 2006, equations 20 and 37, over intervals of every input.
    """
    if queue_s is not None and not 0.0 <= queue_s.low <= queue_s.high < math.inf:
        raise UsageError(f"--queue is {queue_s.value / HOUR_S:g} hours; expected hours, at least 0")
    if deadline_s is not None and not deadline_s > 0.0:
        raise UsageError(f"--deadline is {deadline_s / HOUR_S:g} hours; expected hours above 0")
    rates = usual or hazards()
    written = found.trained_params
    run = _Run(
        num_accelerators=found.num_accelerators,
        num_nodes=math.ceil(found.num_accelerators / found.node_size),
        checkpoint_bytes=None if written is None else rates.checkpoint_bytes_per_param * written,
        is_spot=False,
    )
    return tuple(
        _risk(
            replace(run, is_spot=terms == "spot"),
            terms,
            paid,
            work=found.work,
            rates=rates,
            queue_s=queue_s,
            deadline_s=deadline_s,
        )
        for terms, paid in _prices(found).items()
    )


def _prices(training: Undertaking) -> dict[PriceTerms, Price | None]:
    """The price on each terms; the user's own alone where it was given."""
    own = training.price
    if own is not None and not own.log_half_width:
        return {own.terms: own}
    known = {terms: price(training.accelerator, terms=terms) for terms in TERMS}
    if own is not None:
        known[own.terms] = own
    found: dict[PriceTerms, Price | None] = {terms: each for terms, each in known.items() if each is not None}
    return found or {"on_demand": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run of which every amount follows from values by name: seconds of work, hours between failures ..."""

    num_accelerators: int
    num_nodes: int
    checkpoint_bytes: float | None
    is_spot: bool

    def between_s(self, at: Values) -> NDArray[np.float64]:
        """Mean time to an interruption of the whole."""
        per_hour = self.num_accelerators / at["time between failures"]
        if self.is_spot:
            per_hour = per_hour + self.num_nodes * at["preemption"]
        return np.asarray(HOUR_S / per_hour)

    def checkpoint_s(self, at: Values) -> NDArray[np.float64]:
        """Time to write one checkpoint, all nodes at once."""
        if self.checkpoint_bytes is None:
            return np.full_like(at["work"], float(TYPICAL_FAILURES.checkpoint_s))
        return np.asarray(self.checkpoint_bytes / (at["storage"] * self.num_nodes))

    def interval_s(self, at: Values) -> NDArray[np.float64]:
        """Work between checkpoints; all of it where none pays."""
        best = best_interval_s(self.between_s(at), self.checkpoint_s(at))
        return np.minimum(best, at["work"])

    def paid_s(self, at: Values) -> NDArray[np.float64]:
        """Work and all that is lost."""
        interval = self.interval_s(at)
        written = np.where(interval < at["work"], self.checkpoint_s(at), 0.0)
        longer = stretch(interval, self.between_s(at), checkpoint_s=written, restart_s=at["restart"])
        return np.asarray(at["work"] * np.where(longer > _ENDLESS, math.inf, longer))

    def elapsed_s(self, at: Values) -> NDArray[np.float64]:
        """From asking for the accelerators to the last step."""
        return self.paid_s(at) + at["queue"]

    def usd(self, at: Values) -> NDArray[np.float64]:
        """What is paid."""
        return np.asarray(self.num_accelerators * self.paid_s(at) / HOUR_S * at["price"])

    def num_interruptions(self, at: Values) -> NDArray[np.float64]:
        """Failures and preemptions while the run lasts."""
        return self.paid_s(at) / self.between_s(at)

    def chance_of_any(self, at: Values) -> NDArray[np.float64]:
        """Of an interruption before the work would be done."""
        return -np.expm1(-at["work"] / self.between_s(at))


def _risk(
    run: _Run,
    terms: PriceTerms,
    paid: Price | None,
    *,
    work: Interval,
    rates: Hazards,
    queue_s: Interval | None,
    deadline_s: float | None,
) -> Risk:
    inputs = _inputs(run, paid, work, rates, queue_s)
    values = {each.name: np.array([each.interval.value]) for each in inputs}
    interval = float(run.interval_s(values)[0])
    in_time = None
    if deadline_s is not None:
        in_time = float(np.mean(drawn(run.elapsed_s, inputs) <= deadline_s))
    return Risk(
        terms=terms,
        price=paid,
        num_accelerators=run.num_accelerators,
        work=work,
        num_interruptions=propagated(run.num_interruptions, inputs),
        chance_of_any=float(np.mean(drawn(run.chance_of_any, inputs))),
        checkpoint_interval_s=interval if interval < work.value else None,
        checkpoint_bytes=run.checkpoint_bytes,
        checkpoint_s=propagated(run.checkpoint_s, inputs),
        lost=_lost(run, values),
        elapsed=propagated(run.elapsed_s, inputs),
        money=None if paid is None else propagated(run.usd, inputs),
        chance_in_time=in_time,
        tornado=tornado("elapsed", "s", run.elapsed_s, inputs)
        if paid is None
        else tornado("money", "USD", run.usd, inputs),
        assumes=_assumes(run, terms, rates, queue_s),
    )


def _inputs(
    run: _Run, paid: Price | None, work: Interval, rates: Hazards, queue_s: Interval | None
) -> tuple[Input, ...]:
    named = [
        ("work", "s", work),
        ("time between failures", "h an accelerator", rates.hours_between),
        ("restart", "s", rates.restart_s),
        ("storage", "B/s a node", rates.storage_byte_per_s_per_node),
        ("queue", "s", queue_s or exact(0.0)),
    ]
    if run.is_spot:
        named.append(("preemption", "an hour and node", rates.preemptions_per_node_hour))
    if paid is not None:
        named.append(("price", "USD/h", paid.interval))
    return tuple(Input(name=name, unit=unit, interval=interval) for name, unit, interval in named)


def _lost(run: _Run, values: Values) -> dict[str, float]:
    """Shares of the paid time: writing, restarting, and the rest, which is work done twice."""
    paid, work, interval = (
        float(each[0]) for each in (run.paid_s(values), values["work"], run.interval_s(values))
    )
    if not math.isfinite(paid):
        return {"checkpoints": 0.0, "repeated": 1.0, "restarts": 0.0}
    written = work / interval * float(run.checkpoint_s(values)[0]) if interval < work else 0.0
    restarted = paid / float(run.between_s(values)[0]) * float(values["restart"][0])
    checkpoints = written / paid
    rest = max(0.0, 1.0 - work / paid - checkpoints)
    # A restart that takes as long as the time between failures is itself cut short, mostly.
    restarts = min(restarted / paid, rest)
    return {"checkpoints": checkpoints, "repeated": rest - restarts, "restarts": restarts}


def _assumes(run: _Run, terms: PriceTerms, rates: Hazards, queue_s: Interval | None) -> tuple[str, ...]:
    told = ["any accelerator that fails stops all; interruptions come at random", *rates.basis]
    if not run.is_spot:
        told = [each for each in told if not each.startswith("preemption")]
    else:
        told.append("nodes are taken away one by one, and replaced at once: a wait comes on top")
    if terms == "reserved":
        told.append("of reserved accelerators only the hours of this training are counted")
    if queue_s is None:
        told.append("no time in a queue: give --queue HOURS")
    if run.checkpoint_bytes is None:
        told.append(f"a checkpoint takes {TYPICAL_FAILURES.checkpoint_s:g} s: the weights are not known")
    return tuple(told)
