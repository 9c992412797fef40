"""One training on one kind of cluster, with all that times a strategy: the input of the search."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from equipoise.advice.validation.calibrated_model import CalibratedModel
from equipoise.decide.estimate import DEVIATE, LEVEL
from equipoise.decide.strategies.plan_record import PlanRecord, model_kind, record_of
from equipoise.decide.training import Training, usual_batch
from equipoise.economics.uncertain import spread
from equipoise.perfmodel.estimate import Estimates, Seconds, estimate
from equipoise.perfmodel.layouts import Grid, Numbers, grid
from equipoise.perfmodel.load import Load, workload_load
from equipoise.perfmodel.machine import Machine, machine, stacked
from equipoise.perfmodel.memory import Memory
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.parameters import stacked as stacked_parameters
from equipoise.perfmodel.search import Job, Searched, fastest
from equipoise.perfmodel.space import Space, Value
from equipoise.scaling.law import FloatArray
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import DTYPE_OF, Precision, Strategy
from equipoise.stats import Interval
from equipoise.units import SI_PREFIXES

# The precision to train in unless stated: the first of these whose rate the chip states.
_USUAL_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "tf32", "fp32")
# Where results tell how long a training takes but not how many samples, times are compared for so many.
_UNIT_SAMPLES = SI_PREFIXES["G"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStrategy:
    """One strategy: what a step and the whole training take by the performance model.

    by_cause_s: seconds of a step by cause. memory_bytes, memory_by_kind_bytes: of the fullest accelerator.
    num_samples: of the training. work_s: of all steps, without interruptions. mfu: FLOP of the model, nothing
    counted twice, over those of the accelerators' peak in the strategy's precision; None is not known.
    """

    strategy: Strategy
    step_s: float
    by_cause_s: Mapping[str, float]
    memory_bytes: float
    memory_by_kind_bytes: Mapping[str, float]
    num_samples: float
    work_s: Interval
    mfu: float | None

    @property
    def num_accelerators(self) -> int:
        """Accelerators it takes."""
        return self.strategy.num_accelerators


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Strategies, and equally likely working times of the training by each: (n_draws, n_strategies)."""

    strategies: tuple[TimedStrategy, ...]
    drawn_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A training on a kind of cluster. drawn: the model's equally likely parameters. num_best: per size."""

    training: Training
    cluster: Cluster
    load: Load
    model: CalibratedModel
    drawn: Parameters
    choices: Mapping[str, tuple[Value, ...]]
    num_best: int

    @property
    def record(self) -> PlanRecord:
        """How wrong plans of such models were."""
        return record_of(model_kind(self.training.workload))

    def batches(self, num_accelerators: int) -> tuple[int, ...]:
        """Global batches to try: the one stated, or those that published results span, in even steps.

        Steps are powers of two and three halves of them, and powers of two of the number of accelerators.
        """
        if self.training.global_batch_samples is not None:
            return (self.training.global_batch_samples,)
        batches = self.training.budget.batches
        if batches is None:
            return (usual_batch(self.training.workload),)
        least, most = batches
        steps = range(math.ceil(math.log2(most)) + 1)
        tried = {factor * 2**step for step in steps for factor in (1, 3, num_accelerators)}
        return tuple(sorted(each for each in tried if least <= each <= most)) or (least,)

    def searched(
        self, num_accelerators: int, *, choices: Mapping[str, tuple[Value, ...]] | None = None
    ) -> Searched:
        """The strategies that train fastest on so many accelerators; money and energy go with the time.

        choices: in place of the problem's own.
        """
        problem = self if choices is None else replace(self, choices=choices)
        return problem.surveyed((num_accelerators,))[0]

    def surveyed(self, sizes: Sequence[int]) -> tuple[Searched, ...]:
        """The strategies that train fastest, by number of accelerators: all sizes at once."""
        alike: dict[Machine, list[int]] = defaultdict(list)
        for index, size in enumerate(sizes):
            alike[machine(replace(self.cluster, num_accelerators=size))].append(index)
        found: dict[int, Searched] = {}
        for nodes, indices in alike.items():
            job = Job(
                load=self.load, machine=nodes, parameters=self.model.parameters, num_steps=self.num_steps
            )
            spaces = [self._space(sizes[index]) for index in indices]
            found |= dict(zip(indices, fastest(job, spaces, num_best=self.num_best), strict=True))
        return tuple(found[index] for index in range(len(sizes)))

    def _space(self, num_accelerators: int) -> Space:
        return Space(
            num_accelerators=num_accelerators,
            global_batches=self.batches(num_accelerators),
            choices=self.choices,
        )

    def samples(self, global_batch_samples: Numbers) -> Numbers:
        """Samples of the training at global batches; a unit of them where nobody knows how many."""
        known = self.training.budget.samples
        if known is None:
            return np.full_like(np.asarray(global_batch_samples, dtype=float), _UNIT_SAMPLES)
        return known(np.asarray(global_batch_samples, dtype=float))

    def num_steps(self, global_batch_samples: Numbers) -> Numbers:
        """Steps of the training at global batches."""
        return self.samples(global_batch_samples) / global_batch_samples

    def timed(self, strategies: Sequence[Strategy]) -> Timed:
        """What strategies take, each in full, with intervals."""
        if not strategies:
            return Timed(strategies=(), drawn_s=np.empty((len(self.model.draws), 0)))
        rows = _Rows(problem=self, strategies=tuple(strategies))
        estimates, drawn = rows.estimates(), rows.drawn_step_s()
        widths = _log_half_widths(drawn, estimates.step_s, self.model.log_half_width)
        return Timed(
            strategies=tuple(
                self._timed(each, estimates, index, float(widths[index]))
                for index, each in enumerate(strategies)
            ),
            drawn_s=np.asarray(drawn * self.num_steps(rows.grid.global_batch_samples)),
        )

    def _timed(
        self, chosen: Strategy, estimates: Estimates, index: int, log_half_width: float
    ) -> TimedStrategy:
        def at(values: Numbers) -> float:
            return float(values[index if values.ndim else ()])

        batch = chosen.global_batch_samples
        samples = float(self.samples(np.array([float(batch)]))[0])
        # Of steps alike those it was calibrated on a model knows more than of whole trainings by others.
        known = math.hypot(log_half_width, DEVIATE * self.training.budget.log_sd(float(batch)))
        width = max(known, self.record.log_half_width)
        return TimedStrategy(
            strategy=chosen,
            step_s=at(estimates.step_s),
            by_cause_s={each.name: at(getattr(estimates.seconds, each.name)) for each in fields(Seconds)},
            memory_bytes=at(estimates.memory.needed),
            memory_by_kind_bytes=_by_kind_bytes(
                {each.name: at(getattr(estimates.memory, each.name)) for each in fields(Memory)}
            ),
            num_samples=samples,
            work_s=spread(at(estimates.step_s) * samples / batch, width, level=LEVEL),
            mfu=self.mfu(chosen, at(estimates.step_s), chosen.precision),
        )

    def mfu(self, chosen: Strategy, step_s: float, precision: Precision) -> float | None:
        """FLOP of the model over those of the accelerators' peak in a precision; None where unknown."""
        peak = self.cluster.accelerator.peak_flop_per_s(DTYPE_OF[precision])
        flop = replace(self.training.workload, trained=chosen.trained).train_flop_per_sample
        if peak is None or flop is None:
            return None
        return flop * chosen.global_batch_samples / (step_s * peak * chosen.num_accelerators)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Strategies of any sizes, each on a cluster of its own size."""

    problem: Problem
    strategies: tuple[Strategy, ...]

    @property
    def grid(self) -> Grid:
        """The strategies as flat rows."""
        return grid(self.strategies)

    def estimates(self) -> Estimates:
        """Time and memory by the problem's parameters; arrays of shape (n_strategies,) or ()."""
        return estimate(self.problem.load, self._machines(), self.grid, self.problem.model.parameters)

    def drawn_step_s(self) -> FloatArray:
        """Equally likely seconds of a step: (n_draws, n_strategies)."""
        found = estimate(self.problem.load, self._machines(), self.grid, self.problem.drawn).step_s
        return np.broadcast_to(found, (len(self.problem.model.draws), *self.grid.shape))

    def _machines(self) -> Machine:
        nodes = self.problem.cluster
        sizes = [each.num_accelerators for each in self.strategies]
        known = {size: machine(replace(nodes, num_accelerators=size)) for size in set(sizes)}
        return stacked([known[size] for size in sizes])


def _by_kind_bytes(held: Mapping[str, float]) -> dict[str, float]:
    """Kinds that sum to what is needed: in place of what is reserved, what the allocator holds besides."""
    kinds = {name: size for name, size in held.items() if name != "reserved"}
    used = sum(size for name, size in kinds.items() if name != "fixed")
    return kinds | {"allocator": held["reserved"] - used}


def _log_half_widths(drawn_s: FloatArray, step_s: Numbers, log_half_width: float) -> FloatArray:
    """Half the width of the interval of each step's time, of its logarithm.

    drawn_s: (n_draws, n_strategies) equally likely times. log_half_width: of what the model gets wrong.
    Assumes that what the parameters leave open and what the model gets wrong otherwise are independent.
    """
    low, high = np.quantile(np.log(drawn_s / step_s), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.asarray(np.hypot(np.maximum(high, -low), log_half_width))


def problem(training: Training, cluster: Cluster, model: CalibratedModel, *, num_best: int) -> Problem:
    """All that the search of strategies for a training on a kind of cluster needs.

    Raises SpecError where the work of the workload is not known.
    """
    choices = dict(training.choices)
    choices.setdefault("precision", (_usual_precision(cluster),))
    return Problem(
        training=training,
        cluster=cluster,
        load=workload_load(training.workload),
        model=model,
        drawn=stacked_parameters(model.draws),
        choices=choices,
        num_best=num_best,
    )


def _usual_precision(nodes: Cluster) -> Precision:
    """The precision that training takes on a chip unless stated."""
    chip = nodes.accelerator
    stated = [name for name in _USUAL_PRECISIONS if chip.peak_flop_per_s(DTYPE_OF[name]) is not None]
    return stated[0] if stated else _USUAL_PRECISIONS[0]
