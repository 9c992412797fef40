"""One training on one kind of cluster as a search problem, searched once for every number of accelerators."""

import math
import time
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration.profiles import USER_CALIBRATION, CalibratedModel, architecture
from equipoise.decide.answer import DEVIATE, LEVEL
from equipoise.decide.combine import PlanRecord, model_kind, record_of
from equipoise.decide.field import MAX_SIZES
from equipoise.decide.fine_tuning import USUAL_LORA_RANK
from equipoise.decide.training import Training, usual_batch
from equipoise.errors import SpecError
from equipoise.perfmodel.estimate import Seconds, StepEstimates, estimate
from equipoise.perfmodel.layouts import Numbers, StrategyGrid, divisors, grid
from equipoise.perfmodel.load import Load, workload_load
from equipoise.perfmodel.machine import Machine, machine, stacked
from equipoise.perfmodel.memory import RankMemory
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.parameters import stacked as stacked_parameters
from equipoise.perfmodel.search import Searched, SearchJob, fastest
from equipoise.perfmodel.space import USUAL, Space, Value
from equipoise.scaling.laws import FloatArray
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import DTYPE_OF, Precision, Strategy
from equipoise.stats import Interval, spread
from equipoise.units import SI_PREFIXES, format_si

# The precision to train in unless stated: the first of these whose rate the chip states.
_USUAL_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "tf32", "fp32")
# Where results state how long a training takes but not how many samples, times are compared for so many.
_UNIT_SAMPLES = SI_PREFIXES["G"]

# How far off trainings may be whose kind nothing published was held against (decide/fine_tuning.py has the
# words): a factor of two either way, as assumed.
_UNVALIDATED_LOG_HALF_WIDTH = math.log(2.0)


class TimedStrategy(Struct, frozen=True, kw_only=True):
    """One strategy: what a step and the whole training take by the performance model.

    by_cause_s: seconds of a step by cause. memory_bytes, memory_by_kind_bytes: of the fullest accelerator.
    num_samples: of the training. work_s: of all of it, without interruptions: of a pretraining more than its
    steps. mfu: FLOP of the model, nothing
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


class TimedStrategies(Struct, frozen=True, kw_only=True):
    """Strategies, and equally likely working times of the training by each: (n_draws, n_strategies)."""

    strategies: tuple[TimedStrategy, ...]
    drawn_s: FloatArray


class Problem(Struct, frozen=True, kw_only=True):
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
        """How wrong plans of such trainings were."""
        is_pretraining = self.training.is_pretraining
        return record_of("pretraining" if is_pretraining else model_kind(self.training.workload))

    @property
    def time_per_step_time(self) -> float:
        """Time of the whole training over that of its steps: of pretrainings, as published ones took.

        Of mixtures of experts two were published, and the model is slower of their steps than they were on
        the whole (docs/experiments/0029): their time is that of the steps.
        """
        is_dense = architecture(self.training.workload) == "dense transformer"
        return 1.0 / self.record.bias if self.training.is_pretraining and is_dense else 1.0

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
        by_machine: dict[Machine, list[int]] = defaultdict(list)
        for index, size in enumerate(sizes):
            by_machine[machine(replace(self.cluster, num_accelerators=size))].append(index)
        found: dict[int, Searched] = {}
        for nodes, indices in by_machine.items():
            job = SearchJob(
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

    def timed(self, strategies: Sequence[Strategy]) -> TimedStrategies:
        """What strategies take, each in full, with intervals."""
        if not strategies:
            return TimedStrategies(strategies=(), drawn_s=np.empty((len(self.model.draws), 0)))
        rows = _Rows(problem=self, strategies=tuple(strategies))
        estimates, drawn = rows.estimates(), rows.drawn_step_s()
        widths = _log_half_widths(drawn, estimates.step_s, self.model.log_half_width)
        return TimedStrategies(
            strategies=tuple(
                self._timed(each, estimates, index, float(widths[index]))
                for index, each in enumerate(strategies)
            ),
            drawn_s=np.asarray(
                drawn * (self.num_steps(rows.grid.global_batch_samples) * self.time_per_step_time)
            ),
        )

    def _timed(
        self, chosen: Strategy, estimates: StepEstimates, index: int, log_half_width: float
    ) -> TimedStrategy:
        def at(values: Numbers) -> float:
            return float(values[index if values.ndim else ()])

        batch = chosen.global_batch_samples
        samples = float(self.samples(np.array([float(batch)]))[0])
        # A model knows more of steps like those it was calibrated on than of whole trainings by others.
        known = math.hypot(log_half_width, DEVIATE * self.training.budget.log_sd(float(batch)))
        width = max(known, self.record.log_half_width)
        if chosen.trained == "qlora" or self.training.workload.frozen_share:
            width = math.hypot(width, _UNVALIDATED_LOG_HALF_WIDTH)
        return TimedStrategy(
            strategy=chosen,
            step_s=at(estimates.step_s),
            by_cause_s={name: at(getattr(estimates.seconds, name)) for name in Seconds.__struct_fields__},
            memory_bytes=at(estimates.memory.needed),
            memory_by_kind_bytes=_by_kind_bytes(
                {name: at(getattr(estimates.memory, name)) for name in RankMemory.__struct_fields__}
            ),
            num_samples=samples,
            work_s=spread(
                at(estimates.step_s) * samples / batch * self.time_per_step_time, width, level=LEVEL
            ),
            mfu=self.mfu(chosen, at(estimates.step_s), chosen.precision),
        )

    def mfu(self, chosen: Strategy, step_s: float, precision: Precision) -> float | None:
        """FLOP of the model over those of the accelerators' peak in a precision; None where unknown."""
        peak = self.cluster.accelerator.peak_flop_per_s(DTYPE_OF[precision])
        flop = replace(self.training.workload, trained=chosen.trained).train_flop_per_sample
        if peak is None or flop is None:
            return None
        return flop * chosen.global_batch_samples / (step_s * peak * chosen.num_accelerators)


class _Rows(Struct, frozen=True, kw_only=True):
    """Strategies of any sizes, each on a cluster of its own size."""

    problem: Problem
    strategies: tuple[Strategy, ...]

    @property
    def grid(self) -> StrategyGrid:
        """The strategies as flat rows."""
        return grid(self.strategies)

    def estimates(self) -> StepEstimates:
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


# Beyond so many sizes a survey forgets those that the last question did not need.
_MOST_SIZES: Final = 2 * MAX_SIZES
# Two batches identify a law of samples against batch.
_SOME_BATCH: Final = 4096


class SizeSearch(Struct, frozen=True, kw_only=True):
    """What a search at one size found. best: the best strategy in full; None where nothing fits.

    drawn_s: (n_draws,) equally likely times of the training by the best.
    """

    num_accelerators: int
    found: Searched
    best: TimedStrategy | None
    drawn_s: FloatArray


class Survey(Struct, frozen=True, kw_only=True):
    """A problem, and what was found at each size, from the smallest. search_s: what finding it took."""

    problem: Problem
    sizes: tuple[SizeSearch, ...] = ()
    search_s: float = 0.0

    def at(self, sizes: Collection[int]) -> tuple[SizeSearch, ...]:
        """What was found at some sizes, from the smallest."""
        return tuple(each for each in self.sizes if each.num_accelerators in sizes)


def surveyed(survey: Survey, sizes: Collection[int]) -> Survey:
    """The survey with these sizes; only those not yet in it are searched, all at once."""
    missing = sorted(set(sizes) - {each.num_accelerators for each in survey.sizes})
    if not missing:
        return survey
    began = time.perf_counter()
    searched = sorted(
        (*survey.sizes, *_searched(survey.problem, missing)), key=lambda each: each.num_accelerators
    )
    spent_s = time.perf_counter() - began
    return replace(survey, sizes=tuple(searched), search_s=survey.search_s + spent_s)


def _searched(problem: Problem, sizes: Sequence[int]) -> list[SizeSearch]:
    """What a search finds at each size."""
    found = problem.surveyed(sizes)
    timed = problem.timed([each.best[0].strategy for each in found if each.best])
    best = iter(zip(timed.strategies, timed.drawn_s.T, strict=True))
    nothing = (None, np.empty(0))
    searches = []
    for size, each in zip(sizes, found, strict=True):
        fastest, drawn_s = next(best) if each.best else nothing
        searches.append(SizeSearch(num_accelerators=size, found=each, best=fastest, drawn_s=drawn_s))
    return searches


class Surveys:
    """The surveys asked for last, at most so many, each of a bounded number of sizes; thread-safe.

    What a server is asked again with other money, deadlines or sizes is searched once.
    """

    def __init__(self, most: int = 64) -> None:
        """most: how many to keep; about 0.2 MB each."""
        self._most = most
        self._kept: OrderedDict[Hashable, Survey] = OrderedDict()
        self._lock = Lock()

    def surveyed(self, problem: Problem, sizes: Collection[int]) -> Survey:
        """The survey of a problem with these sizes and no others."""
        key = _key(problem)
        with self._lock:
            known = self._kept.get(key) if key is not None else None
        found = surveyed(known or Survey(problem=problem), sizes)
        if key is not None:
            with self._lock:
                kept = found if len(found.sizes) <= _MOST_SIZES else replace(found, sizes=found.at(sizes))
                self._kept[key] = kept
                self._kept.move_to_end(key)
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        return replace(found, problem=problem, sizes=found.at(sizes))

    def clear(self) -> None:
        """Forget them all."""
        with self._lock:
            self._kept.clear()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)


def _key(problem: Problem) -> Hashable | None:
    """What a survey depends on; None with the user's own measurements in the model: those are not kept."""
    training, model = problem.training, problem.model
    if model.links is not None or model.calibration.name == USER_CALIBRATION:
        return None
    budget = training.budget
    return (
        training.workload,
        training.global_batch_samples,
        budget.work,
        budget.batches,
        None if budget.samples is None else budget.samples_at(1),
        None if budget.samples is None else budget.samples_at(_SOME_BATCH),
        problem.cluster,
        model.calibration.name,
        frozenset(problem.choices.items()),
        problem.num_best,
    )


SURVEYS: Final = Surveys()

_MOST_MICROBATCH: Final = 64  # samples


def plain_strategies(problem: Problem, best: Strategy) -> tuple[Strategy, ...]:
    """Plain DDP and FSDP of the best strategy's size, batch and precision, where they are legal and fit.

    The largest micro-batch that fits is taken.
    """
    size, batch = best.num_accelerators, best.global_batch_samples
    held = problem.cluster.accelerator.memory_bytes
    if size == 1 or batch % size:
        return ()
    found = []
    for stage in (0, 3):
        if "zero_stage" in problem.choices and stage not in problem.choices["zero_stage"]:
            continue
        plain = [
            each
            for microbatch in divisors(batch // size)
            if microbatch <= _MOST_MICROBATCH
            if (each := _plain(best, size, stage, microbatch)) is not None
        ]
        timed = problem.timed(plain).strategies
        fitting = [each for each in timed if held is None or each.memory_bytes <= held]
        if fitting:
            found.append(min(fitting, key=lambda each: each.work_s.value).strategy)
    return tuple(found)


def _plain(best: Strategy, size: int, stage: int, microbatch: int) -> Strategy | None:
    usual = Strategy(global_batch_samples=best.global_batch_samples)
    try:
        return replace(
            usual,
            dp=size,
            microbatch_samples=microbatch,
            zero_stage=stage,
            precision=best.precision,
            implementation=best.implementation,
            optimizer=best.optimizer,
            trained=best.trained,
            lora_rank=best.lora_rank,
        )
    except SpecError:
        return None


_MOST_DOUBLINGS = 14
_MOST_SHOWN = 3
# What saves memory, in the order of what it costs: another value of one parameter at a time.
_SPARING: tuple[tuple[str, Value], ...] = (
    ("zero_stage", 3),
    ("recompute", "full"),
    ("optimizer", "adam_8bit"),
    ("master_weights", False),
    ("offload", "optimizer"),
    ("offload", "optimizer_and_params"),
    ("trained", "lora"),
    ("trained", "qlora"),
)


def remedy(problem: Problem, num_accelerators: int) -> str | None:
    """What the training needs, what there is, and what would do; None where nothing is legal or all is well.

    Amounts are of all accelerators together, by the strategy that needs the least.
    """
    found = problem.searched(num_accelerators)
    held = problem.cluster.accelerator.memory_bytes
    if found.memories is None or found.num_fitting or held is None:
        return None
    needed = found.memories.least_bytes * num_accelerators
    tries = [*_more(problem, num_accelerators), *_others(problem, num_accelerators)]
    hint = f": try {' or '.join(tries[:_MOST_SHOWN])}" if tries else ""
    return (
        f"needs {format_si(needed, 'B')}, {num_accelerators:,} x {format_si(float(held), 'B')} hold "
        f"{format_si(float(held) * num_accelerators, 'B')}{hint}"
    )


def _more(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """The fewest doublings of accelerators on which it fits, if any."""
    for doubling in range(1, _MOST_DOUBLINGS + 1):
        size = num_accelerators * 2**doubling
        if problem.searched(size).num_fitting:
            yield f"{size:,} accelerators"
            return


def _others(problem: Problem, num_accelerators: int) -> Iterator[str]:
    """Changes of one parameter that make it fit."""
    for name, value in _SPARING:
        if value in problem.choices.get(name, USUAL[name]):
            continue
        choices = dict(problem.choices) | {name: (value,)}
        if name == "offload" and "zero_stage" not in problem.choices:
            choices["zero_stage"] = USUAL["zero_stage"]
        if name == "trained":
            choices["lora_rank"] = (problem.training.workload.lora_rank or USUAL_LORA_RANK,)
        if problem.searched(num_accelerators, choices=choices).num_fitting:
            yield f"{name}={str(value).lower() if isinstance(value, bool) else value}"
