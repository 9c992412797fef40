"""A training on a kind of cluster as a search problem over strategies, for any number of accelerators."""

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.calibration import UNCALIBRATED_LOG_SD
from equipoise.calibration.profiles import (
    CalibratedModel,
    architecture,
    software_for,
)
from equipoise.decide.combine import (
    PlannedPretraining,
    PlanRecord,
    model_kind,
    pretraining_kind,
    quick_pretraining,
    record_of,
)
from equipoise.decide.question.fine_tuning import (
    ROLLOUT_LOG_SD,
    ROLLOUT_TIME_PER_STEP_TIME,
    USUAL_FINE_TUNING_BATCH,
)
from equipoise.decide.question.training import FEWEST_STEPS, Training, usual_batch
from equipoise.errors import SpecError
from equipoise.intervals import DEVIATE, LEVEL, Interval, spread
from equipoise.perfmodel.estimate import Seconds, StepEstimates, estimate
from equipoise.perfmodel.generation import (
    OWN_MEMORY,
    SHARED_MEMORY,
    Engines,
    Generation,
    RolloutSplit,
    generation,
)
from equipoise.perfmodel.layouts import divisors, grid
from equipoise.perfmodel.load import Load, Numbers, held_by, workload_load
from equipoise.perfmodel.machine import Machine, machine, stacked
from equipoise.perfmodel.memory import RankMemory
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.search import FoundStrategy, SearchJob, SearchResult, faster, fastest, fits
from equipoise.perfmodel.space import USUAL, Space
from equipoise.scaling.laws import FloatArray
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import (
    GRADIENTS_SHARDED,
    PIPELINE_STAGES,
    PRIORS_ONLY,
    SOFTWARE,
    WEIGHTS_SHARDED,
    ZERO_STAGES,
    Precision,
    Software,
    Strategy,
    Value,
    peak_in,
    value_text,
)
from equipoise.spec.strategy import software as software_named
from equipoise.stats import quantiles
from equipoise.units import SI_PREFIXES

# The default precision: the first of these with a stated rate on the chip.
_USUAL_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "tf32", "fp32")
# Samples of a training if unknown: times are then only compared with each other.
_UNIT_SAMPLES = SI_PREFIXES["G"]
# Largest relative rounding of a usual batch to a divisible one: less than trainings of one size differ by.
_MAX_ROUNDING: Final = 0.25
_FINE_UNIT: Final = 1 / 16  # largest unit over batch: rounding by at most 3 %
# Largest relative rounding to a batch with an even number of samples per rank, for micro-batches, if the
# nearest divisible batch has an odd number.
_MAX_EVEN_ROUNDING: Final = 0.1
# For fine-tunings, whose usual batch is less certain, divisible batches within these factors are tried.
_BATCH_RANGE: Final = (5 / 6, 9 / 8)
# The usual batch of a fine-tuning grows to one sample per accelerator, as in programs with a batch per
# device, up to this factor, or to the default of language models.
_MAX_BATCH_GROWTH: Final = 2
_MAX_GROWN_SAMPLES: Final = USUAL_FINE_TUNING_BATCH["language"]

# Assumed log half width for kinds of training without published results to compare with: a factor of two
# (decide/question/fine_tuning.py has the message).
_UNVALIDATED_LOG_HALF_WIDTH = math.log(2.0)

_NO_BATCHES: Final[Mapping[int, int]] = MappingProxyType({})
_MAX_SPLITS: Final = 16  # of accelerators into two pools
# Hours of whole pretrainings over those of their own steps, where both are published: LLaMA 65B (380 tokens/s
# per accelerator: arXiv:2302.13971) 1.00, BLOOM (105 s per step of 4 Mi tokens on 384: its chronicles) 1.11,
# Olmo 3 7B and 32B (7,700 and 1,900 tokens/s: arXiv:2512.13961) 1.09 and 1.31. The median over families.
_TIME_PER_OWN_STEP_TIME: Final = 1.11
OWN_STEPS_LOG_SD: Final = 0.1  # sd of its logarithm


class TimedStrategy(Struct, frozen=True, kw_only=True):
    """A strategy with its step time, memory and training time by the performance model.

    by_cause_s: seconds of a step by cause. memory_bytes, memory_by_kind_bytes: of the fullest accelerator.
    num_samples: of the training. work_s: whole training without interruptions; of pretrainings, more than
    steps.
    """

    strategy: Strategy
    step_s: float
    by_cause_s: Mapping[str, float]
    memory_bytes: float
    memory_by_kind_bytes: Mapping[str, float]
    num_samples: float
    work_s: Interval


class TimedStrategies(Struct, frozen=True, kw_only=True):
    """Strategies, and equally likely uninterrupted training times: (n_draws, n_strategies)."""

    strategies: tuple[TimedStrategy, ...]
    drawn_s: FloatArray


class Problem(Struct, frozen=True, kw_only=True):
    """A training on a kind of cluster.

    choices: allowed values by option. software: limits the choices; None if no measured software applies.
    num_best: strategies to find per size. has_own_steps: whether the user's own steps set the model's times.
    published_batches: by size, the global batch of the best published result, whose time is evidence there.
    """

    training: Training
    cluster: Cluster
    load: Load
    model: CalibratedModel
    choices: Mapping[str, tuple[Value, ...]]
    software: Software | None
    num_best: int
    has_own_steps: bool = False
    published_batches: Mapping[int, int] = _NO_BATCHES

    @property
    def with_activations_on_host(self) -> Mapping[str, tuple[Value, ...]] | None:
        """The choices with activations offloaded to the host; None if the software cannot offload them."""
        asked = self.choices.get("recompute", USUAL["recompute"])
        kept = tuple(each for each in asked if self.software is None or each in self.software.offloads_with)
        return {**self.choices, "activation_offload": (True,), "recompute": kept} if kept else None

    @property
    def record(self) -> PlanRecord:
        """The accuracy record of plans of such trainings."""
        about = self.training.workload
        return record_of(pretraining_kind(about) if self.training.is_pretraining else model_kind(about))

    @property
    def time_per_step_time(self) -> float:
        """Time of the whole training over the modelled time of its steps, from published trainings.

        Covers evaluation in trainings to a target, and all other work in pretrainings and rollouts. For
        pretrainings it includes the ratio of other teams' steps to the model, unless the steps were measured,
        and is smaller if a published pretraining of the same model took less than usual.
        """
        if self.training.workload.rollout is not None:
            return ROLLOUT_TIME_PER_STEP_TIME
        if self.training.is_pretraining and not self.has_own_steps:
            flop, quick = self.training.stated_flop, self.quick_pretraining
            if quick is not None:
                return quick.time_per_step_time(flop, self.cluster.accelerator)
            return self.record.time_per_step_time(flop)
        return self.time_per_own_step_time

    @property
    def quick_pretraining(self) -> PlannedPretraining | None:
        """The published pretraining of this model that sets `time_per_step_time`; None if there is none."""
        is_asked = self.training.is_pretraining and not self.has_own_steps
        return quick_pretraining(self.training.workload) if is_asked else None

    @property
    def time_per_own_step_time(self) -> float:
        """Time of the whole training over that of its own, measured steps."""
        is_pretraining = self.training.is_pretraining
        return _TIME_PER_OWN_STEP_TIME if is_pretraining else self.training.budget.time_per_step_time

    def batches(self, num_accelerators: int) -> tuple[int, ...]:
        """Global batches to try: the stated or published one, the usual one and divisible ones, or a range.

        In a range spanned by results, batches are powers of two and three halves of them, also times the odd
        part of the number of accelerators: 72 divide 9, 18, 36.
        """
        if self.training.fixed_batch_samples is not None:
            return (self.training.fixed_batch_samples,)
        if self.has_published_batch(num_accelerators):
            return (self.published_batches[num_accelerators],)
        batch, batches = self.training.global_batch_samples, self.training.budget.batches
        if batch is not None or batches is None:
            usual = usual_batch(self.training.workload) if batch is None else batch
            near = (
                self._grown_batch(usual, num_accelerators),
                *self._divisible_batches(usual, num_accelerators),
            )
            return tuple(dict.fromkeys((usual, *near)))
        least, most = batches
        steps = range(math.ceil(math.log2(most)) + 1)
        odd = num_accelerators // (num_accelerators & -num_accelerators)
        tried = {factor * 2**step for step in steps for factor in (1, 3, odd, 3 * odd)}
        return tuple(sorted(each for each in tried if least <= each <= most)) or (least,)

    def _divisible_batches(self, usual: int, num_accelerators: int) -> tuple[int, ...]:
        """Batches near the usual one that the accelerators divide evenly.

        If there are more accelerators than samples, or no multiple is near, a half, a quarter and so on of
        them are data ranks. With few accelerators, samples per rank are a multiple of a power of two, for
        micro-batches; if they are odd, an even number is tried too: five divide 64 as 65, 13 each, and as 60.
        For a fine-tuning all near multiples are tried, and if the usual batch is divisible, the next smaller
        one that allows micro-batches of three. Else the usual batch.
        """
        unit = one_each = num_accelerators * self.training.workload.samples_per_example
        while 2 * unit <= _FINE_UNIT * usual:
            unit *= 2
        rollout = self.training.workload.rollout
        group = 1 if rollout is None else rollout.group_size
        while (batch := _nearest_multiple(usual, math.lcm(unit, group))) is None and unit % 2 == 0:
            unit //= 2
        near = [batch]
        if self.training.is_fine_tuning and usual % one_each:
            ends = tuple(round(usual * each) for each in _BATCH_RANGE)
            about = range(-(-ends[0] // one_each) * one_each, ends[1] + 1, one_each)
            near += [each for each in about if each % group == 0]
        elif batch is not None and unit >= one_each and batch % (2 * one_each):
            near.append(_nearest_multiple(usual, math.lcm(2 * one_each, group), _MAX_EVEN_ROUNDING))
        elif self.training.is_fine_tuning and rollout is None:
            # A larger batch is not tried, because it would be slightly faster just by having fewer steps.
            threes = usual // (3 * one_each) * 3 * one_each
            near.append(threes if threes >= _BATCH_RANGE[0] * usual else None)
        shared = (each for each in near if each is not None and each <= self._num_samples(each))
        return tuple(shared) or (usual,)

    def _grown_batch(self, usual: int, num_accelerators: int) -> int:
        """The batch of a fine-tuning with more accelerators than samples, within the allowed growth.

        One sample per accelerator, or per a half, a quarter and so on of them. Else the usual batch.
        """
        about = self.training.workload
        batch = num_accelerators * about.samples_per_example
        if not self.training.is_fine_tuning or about.rollout is not None or batch <= usual:
            return usual
        steps_most = self._num_samples(batch) / FEWEST_STEPS
        most = min(max(_MAX_BATCH_GROWTH * usual, _MAX_GROWN_SAMPLES), steps_most)
        while batch > most and batch % (2 * about.samples_per_example) == 0:
            batch //= 2
        return batch if usual < batch <= most else usual

    @property
    def freed(self) -> "Problem":
        """A copy without published batches."""
        return replace(self, published_batches=_NO_BATCHES)

    def has_published_batch(self, num_accelerators: int) -> bool:
        """Whether only the batch of the best published result is tried."""
        return self.training.global_batch_samples is None and num_accelerators in self.published_batches

    def search_size(self, num_accelerators: int) -> SearchResult:
        """The fastest strategies at one size; cost and energy are proportional to the time."""
        return self.search_sizes((num_accelerators,))[0]

    def search_sizes(self, sizes: Sequence[int]) -> tuple[SearchResult, ...]:
        """The fastest strategies at each size, from one search of all sizes."""
        return search_at_once([(self, size) for size in sizes])

    def machine(self, num_accelerators: int) -> Machine:
        """The performance model's machine with this number of the cluster's accelerators."""
        return machine(replace(self.cluster, num_accelerators=num_accelerators))

    def fits(self, num_accelerators: int) -> bool:
        """Whether any strategy on `num_accelerators` fits into memory."""
        nodes = self.machine(num_accelerators)
        return fits(self.job(nodes), self.space(num_accelerators))

    def job(self, nodes: Machine) -> SearchJob:
        """The search job on a machine."""
        return SearchJob(
            load=self.load, machine=nodes, parameters=self.model.parameters, num_steps=self.num_steps
        )

    def space(self, num_accelerators: int) -> Space:
        """The search space on `num_accelerators`."""
        return Space(
            num_accelerators=num_accelerators,
            global_batches=self.batches(num_accelerators),
            choices=_without_offload(self.choices, self.cluster),
            offload_stages=ZERO_STAGES if self.software is None else self.software.offload_stages,
            pipeline_stages=PIPELINE_STAGES if self.software is None else self.software.pipeline_stages,
        )

    def samples(self, global_batch_samples: Numbers) -> Numbers:
        """Samples of the training by global batch; _UNIT_SAMPLES if unknown."""
        known = self.training.budget.samples
        if known is None:
            return np.full_like(np.asarray(global_batch_samples, dtype=float), _UNIT_SAMPLES)
        return known(np.asarray(global_batch_samples, dtype=float))

    def _num_samples(self, global_batch_samples: int) -> float:
        """Samples of the training at one global batch."""
        return float(self.samples(np.array([global_batch_samples]))[0])

    def num_steps(self, global_batch_samples: Numbers) -> Numbers:
        """Steps of the training by global batch."""
        return self.samples(global_batch_samples) / global_batch_samples

    def timed(self, strategies: Sequence[Strategy]) -> TimedStrategies:
        """Full estimates of strategies, with intervals."""
        if not strategies:
            return TimedStrategies(strategies=(), drawn_s=np.empty((len(self.model.draws), 0)))
        made = [self.generation(each.num_accelerators, each.global_batch_samples) for each in strategies]
        before_s = np.array([0.0 if each is None else each.seconds for each in made])
        estimates = self.estimated(strategies, self.model.parameters)
        shape = (len(self.model.draws), len(strategies))
        drawn = np.broadcast_to(self.estimated(strategies, self.model.drawn).step_s, shape) + before_s
        estimates = replace(estimates, step_s=estimates.step_s + before_s)
        widths = _log_half_widths(drawn, estimates.step_s, self.model.log_half_width)
        return TimedStrategies(
            strategies=tuple(
                self._timed(each, estimates, index, float(widths[index]), made[index])
                for index, each in enumerate(strategies)
            ),
            drawn_s=np.asarray(
                drawn * (self.num_steps(grid(strategies).global_batch_samples) * self.time_per_step_time)
            ),
        )

    def estimated(self, strategies: Sequence[Strategy], parameters: Parameters) -> StepEstimates:
        """Time and memory of strategies of any sizes, each on a cluster of its size.

        Arrays of shape (n_strategies,) or (); with drawn parameters, (n_draws, n_strategies).
        """
        sizes = [each.num_accelerators for each in strategies]
        known = {size: self.machine(size) for size in set(sizes)}
        return estimate(self.load, stacked([known[size] for size in sizes]), grid(strategies), parameters)

    def generation(
        self, num_accelerators: int, num_completions: float, *, memory_share: float = SHARED_MEMORY
    ) -> Generation | None:
        """The generation of a step's completions; None where none are needed, or the model does not fit."""
        if self.training.workload.rollout is None:
            return None
        nodes = self.machine(num_accelerators)
        at = Engines(machine=nodes, num_accelerators=num_accelerators, memory_share=memory_share)
        return generation(self.training.workload, at, self.model.parameters, num_completions=num_completions)

    def rollout_split(
        self, num_accelerators: int, num_completions: int, step_s: float
    ) -> RolloutSplit | None:
        """Generation and training on all accelerators in turn, and on the fastest split into two pools.

        step_s: of both in turn. Pools have whole nodes if there are several nodes.
        """
        shared = self.generation(num_accelerators, num_completions)
        if shared is None:
            return None
        unit = self.cluster.node_size if num_accelerators > self.cluster.node_size else 1
        units = num_accelerators // unit
        wanted = range(unit, units * unit, unit * max(1, units // _MAX_SPLITS))
        pools: list[tuple[float, int, float, float]] = []
        for num_training, found in zip(wanted, self.search_sizes(wanted), strict=True):
            left = num_accelerators - num_training
            made = self.generation(left, num_completions, memory_share=OWN_MEMORY)
            if made is None or not found.best:
                continue
            (timed,) = self.timed([found.best[0].strategy]).strategies
            training_s = timed.step_s - timed.by_cause_s.get("generation", 0.0)
            pools.append((max(made.seconds, training_s), num_training, made.seconds, training_s))
        split = RolloutSplit(
            num_shared=num_accelerators,
            generation_s=shared.seconds,
            training_s=step_s - shared.seconds,
            ranks_per_engine=shared.ranks,
        )
        if not pools:
            return split
        _, at_once, generation_s, training_s = min(pools)
        return replace(
            split,
            num_generating=num_accelerators - at_once,
            num_training=at_once,
            pooled_generation_s=generation_s,
            pooled_training_s=training_s,
        )

    def _timed(
        self,
        chosen: Strategy,
        estimates: StepEstimates,
        index: int,
        log_half_width: float,
        made: Generation | None,
    ) -> TimedStrategy:
        def at(values: Numbers) -> float:
            return float(values[index if values.ndim else ()])

        batch = chosen.global_batch_samples
        samples = self._num_samples(batch)
        # Steps like those of the calibration are predicted better than whole trainings by others.
        known = math.hypot(log_half_width, DEVIATE * self.training.budget.log_sd(float(batch)))
        width = max(known, self.record.log_half_width)
        if self.training.workload.transformer is not None and self.model.calibration == PRIORS_ONLY:
            # Almost all published trainings of transformers ran on chips with measured steps.
            width = math.hypot(width, DEVIATE * UNCALIBRATED_LOG_SD)
        if self.training.workload.rollout is not None:
            width = math.hypot(width, DEVIATE * ROLLOUT_LOG_SD)
        elif self.training.workload.is_unlike_published(chosen.trained):
            width = math.hypot(width, _UNVALIDATED_LOG_HALF_WIDTH)
        by_cause_s = {name: at(getattr(estimates.seconds, name)) for name in Seconds.__struct_fields__}
        if made is not None:
            by_cause_s["generation"] = made.seconds
        return TimedStrategy(
            strategy=chosen,
            step_s=at(estimates.step_s),
            by_cause_s=by_cause_s,
            memory_bytes=at(estimates.memory.needed),
            memory_by_kind_bytes=_by_kind_bytes(
                {name: at(getattr(estimates.memory, name)) for name in RankMemory.__struct_fields__}
            ),
            num_samples=samples,
            work_s=spread(
                at(estimates.step_s) * samples / batch * self.time_per_step_time, width, level=LEVEL
            ),
        )

    def mfu(self, chosen: Strategy, step_s: float, precision: Precision) -> float | None:
        """Model FLOP utilisation: FLOP without recomputation over the accelerators' peak in a precision.

        None where either is unknown.
        """
        peak = peak_in(self.cluster.accelerator, precision)
        flop = replace(self.training.workload, trained=chosen.trained).train_flop_per_sample
        if peak is None or flop is None:
            return None
        return flop * chosen.global_batch_samples / (step_s * peak * chosen.num_accelerators)


ProblemAtSize: TypeAlias = tuple[Problem, int]


def search_at_once(asked: Sequence[ProblemAtSize]) -> tuple[SearchResult, ...]:
    """The fastest strategies of problems that differ only in choices and published batches.

    One search of many spaces takes little longer than one of few.
    """
    found: dict[int, SearchResult] = {}
    for job, spaces, num_best in _jobs(asked):
        found |= zip(spaces, fastest(job, [*spaces.values()], num_best=num_best), strict=True)
    return tuple(found[place] for place in range(len(asked)))


def faster_at_once(
    asked: Sequence[ProblemAtSize],
    to_beat_s: Mapping[int, float],
    *,
    name: str,
    value: Value,
    allowed: Mapping[str, Collection[Value]],
) -> dict[int, tuple[FoundStrategy, ...]]:
    """Strategies that beat a given training time with another value of an option, by index in `asked`.

    asked: as searched just before, so that layouts are cached. to_beat_s: threshold by index; other problems
    are not searched. allowed: values of the other options.
    """
    found: dict[int, tuple[FoundStrategy, ...]] = {}
    for job, spaces, num_best in _jobs(asked):
        places = [*spaces]
        limits_s = {number: to_beat_s[place] for number, place in enumerate(places) if place in to_beat_s}
        of_job = faster(
            job, [*spaces.values()], limits_s, name=name, value=value, allowed=allowed, num_best=num_best
        )
        found |= {places[number]: best for number, best in of_job.items()}
    return found


def _jobs(asked: Sequence[ProblemAtSize]) -> Iterator[tuple[SearchJob, dict[int, Space], int]]:
    """Yield search jobs for problems with equal machine and choices.

    A job, its spaces by index in `asked`, and the number of strategies to find.
    """
    by_key: dict[Hashable, dict[int, Space]] = defaultdict(dict)
    for place, (posed, size) in enumerate(asked):
        space = posed.space(size)
        by_key[posed.machine(size), frozenset(space.choices.items())][place] = space
    for spaces in by_key.values():
        posed, size = asked[next(iter(spaces))]
        yield posed.job(posed.machine(size)), spaces, posed.num_best


def _by_kind_bytes(held: Mapping[str, float]) -> dict[str, float]:
    """Kinds of memory that sum to the total: `reserved` is replaced by the allocator's own overhead."""
    kinds = {name: size for name, size in held.items() if name != "reserved"}
    used = sum(size for name, size in kinds.items() if name != "fixed")
    return kinds | {"allocator": held["reserved"] - used}


def _log_half_widths(drawn_s: FloatArray, step_s: Numbers, log_half_width: float) -> FloatArray:
    """Half widths of the intervals of log step times: (n_strategies,).

    drawn_s: equally likely step times, (n_draws, n_strategies). log_half_width: of the model's errors.
    Assumes uncertainty of parameters and other errors of the model are independent.
    """
    low, high = quantiles(np.log(drawn_s / step_s), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return np.asarray(np.hypot(np.maximum(high, -low), log_half_width))


def problem(
    training: Training,
    cluster: Cluster,
    model: CalibratedModel,
    *,
    num_best: int,
    software: str | None = None,
    published_batches: Mapping[int, int] = _NO_BATCHES,
) -> Problem:
    """The search problem of a training on a kind of cluster.

    software: as stated in the question. Raises SpecError if the workload's work is unknown, offloading is
    requested where accelerator and host share memory, compilation is requested for a chip without a compiler,
    or the stated software lacks a requested option.
    """
    offloads = training.choices.get("offload", (STAYS["offload"],))
    if cluster.accelerator.shares_host_memory and STAYS["offload"] not in offloads:
        raise SpecError(
            f"--fix offload={','.join(map(str, offloads))}: {cluster.accelerator.title} shares its memory "
            "with its host, so there is no other memory to offload to; give offload=none"
        )
    name = software_for(cluster.accelerator, training.workload, software)
    chosen = None if name is None else software_named(name)
    usual = _usual_choices(training, cluster, chosen)
    choices = _supported_choices(usual, chosen, is_stated=software is not None)
    return Problem(
        training=training,
        cluster=cluster,
        load=held_by(workload_load(training.workload), chosen),
        model=model,
        choices=choices,
        software=chosen,
        num_best=num_best,
        published_batches=published_batches,
    )


def _usual_choices(
    training: Training, cluster: Cluster, chosen: Software | None
) -> dict[str, tuple[Value, ...]]:
    """The choices stated for a training, with defaults for its kind, chip and software.

    Raises SpecError if compilation is requested for a chip without a compiler.
    """
    choices = dict(training.choices)
    is_mixture = architecture(training.workload) == "mixture of experts"
    choices.setdefault("precision", (usual_precision(cluster, training, chosen),))
    if cluster.accelerator.lacks_compiler:
        if "eager" not in choices.get("implementation", ("eager",)):
            raise SpecError(
                f"--fix implementation=compiled: PyTorch's compiler makes no kernels for "
                f"{cluster.accelerator.title}; give implementation=eager"
            )
        choices["implementation"] = ("eager",)
    if training.budget.is_to_target and chosen is not None:
        # Published benchmark results use tuned code, with CUDA graphs where the software supports them.
        choices.setdefault("cuda_graphs", _first_of(chosen, "cuda_graphs"))
        if is_mixture:
            # For mixtures of experts, graphs of whole steps, as in all results of MLPerf Training v6.0.
            choices.setdefault("full_graphs", (True in chosen.options["full_graphs"],))
    if chosen is not None and is_mixture:
        choices.setdefault("dispatch_copies", _first_of(chosen, "dispatch_copies"))
        if chosen.has_experts_in_shards:
            choices.setdefault("zero_stage", (GRADIENTS_SHARDED, WEIGHTS_SHARDED))
        most = chosen.most_dispatch_ranks if choices["dispatch_copies"] == (False,) else None
        if most is not None and cluster.node_size <= _DISPATCH_HOST:
            choices.setdefault("ep", tuple(range(1, most + 1)))
    if training.workload.transformer is None and training.workload.area != _USER_CODE_AREA:
        # Programs for convolutions or tables use data parallelism only; none splits such models into stages.
        choices.setdefault("pp", (1,))
    return choices


# Area of user code without a vocabulary (`torch_model.count`), which may be split into pipeline stages.
_USER_CODE_AREA: Final = "other"
# `Software.most_dispatch_ranks` applies to hosts with at most this number of accelerators.
_DISPATCH_HOST: Final = 8


def _first_of(chosen: Software, option: str) -> tuple[Value, ...]:
    """A software's first value of an option; the usual value if it lists none."""
    return chosen.options.get(option, USUAL[option])[:1]


def _supported_choices(
    choices: Mapping[str, tuple[Value, ...]], chosen: Software | None, *, is_stated: bool
) -> dict[str, tuple[Value, ...]]:
    """The choices restricted to values supported by the software.

    Software measured without a compiler is planned without one by default. Without software, the schedule is
    one that all software supports. Values that no software supports are kept.
    Raises SpecError if the software supports none of the requested values, and was stated or another does.
    """
    options = {} if chosen is None else dict(chosen.options)
    is_offloaded = choices.get("activation_offload") == (True,)
    if chosen is not None and is_offloaded:
        if not chosen.offloads_with:
            others = [each.name for each in _others(chosen) if each.offloads_with]
            raise SpecError(
                f"--fix activation_offload=true: {chosen.name} does not support it; give "
                f"activation_offload=false, or {_software_words(others)}"
            )
        options["recompute"] = chosen.offloads_with
    if chosen is None:
        # No program combines the schedules of one software with the dispatchers of another.
        options["schedule"] = ("1f1b",)
    found = dict(choices)
    if chosen is not None and chosen.is_eager:
        found.setdefault("implementation", ("eager",))
    for option, had in options.items():
        if option in STAYS and option not in choices:
            continue  # searched only where it is needed
        asked = choices.get(option, USUAL.get(option, had))
        found[option] = tuple(each for each in asked if each in had) or tuple(asked)
        if chosen is None or not {*asked}.isdisjoint(had):
            continue
        others = [each.name for each in _others(chosen) if {*each.options.get(option, asked)} & {*asked}]
        if is_stated or others:
            values, others_had = (",".join(map(value_text, each)) for each in (asked, had))
            beside = " with activation_offload=true" if option == "recompute" and is_offloaded else ""
            stated = f"--train {values}" if option == "trained" else f"--fix {option}={values}"
            raise SpecError(
                f"{stated}: {chosen.name} supports only {option}={others_had}{beside}; give that, "
                f"or {_software_words(others)}"
            )
    return found


def _others(chosen: Software) -> list[Software]:
    """Other software for the same vendor's chips that has no successor."""
    return [
        each
        for each in SOFTWARE
        if each.vendor == chosen.vendor and each.successor is None and each.name != chosen.name
    ]


def _software_words(names: Sequence[str]) -> str:
    return f"--software, one of {', '.join(names)}" if names else "another --software"


def _nearest_multiple(usual: int, unit: int, most: float = _MAX_ROUNDING) -> int | None:
    """The multiple of `unit` nearest to a usual batch; None if it differs by more than `most`, relatively."""
    batch = max(1, round(usual / unit)) * unit
    return batch if abs(batch - usual) <= most * usual else None


# Values of options that offload nothing to the host.
STAYS: Final[Mapping[str, Value]] = {"offload": "none", "activation_offload": False}


def _without_offload(
    choices: Mapping[str, tuple[Value, ...]], nodes: Cluster
) -> Mapping[str, tuple[Value, ...]]:
    """The choices without offloading, if accelerator and host share memory; else unchanged."""
    if not nodes.accelerator.shares_host_memory:
        return choices
    return {**choices, **{name: (value,) for name, value in STAYS.items()}}


def usual_precision(nodes: Cluster, training: Training, software: Software | None = None) -> Precision:
    """The default precision of a training on a chip.

    Transformers trained to a published target use fp8 if possible, as published results do.
    software: None: any.
    """
    chip = nodes.accelerator
    has_fp8 = software is None or "fp8" in software.options.get("precision", ("fp8",))
    is_published = training.budget.is_to_target and training.workload.transformer is not None and has_fp8
    if is_published and peak_in(chip, "fp8") is not None:
        return "fp8"
    stated = [name for name in _USUAL_PRECISIONS if peak_in(chip, name) is not None]
    return stated[0] if stated else _USUAL_PRECISIONS[0]


_MAX_MICROBATCH: Final = 64  # samples


def plain_strategies(problem: Problem, best: Strategy) -> tuple[Strategy, ...]:
    """Plain DDP and FSDP with the best strategy's size, batch and precision, if legal and fitting.

    Each with its fastest micro-batch that fits.
    """
    size, batch = best.num_accelerators, best.global_batch_samples
    if size == 1 or batch % size:
        return ()
    stages = [stage for stage in (0, 3) if stage in problem.choices.get("zero_stage", (0, 3))]
    plain = tuple(
        each
        for stage in stages
        for microbatch in divisors(batch // size)
        if microbatch <= _MAX_MICROBATCH
        if (each := _plain(best, size, stage, microbatch)) is not None
    )
    if not plain:
        return ()
    found = problem.estimated(plain, problem.model.parameters)
    step_s = np.broadcast_to(found.step_s, len(plain))
    held = problem.cluster.accelerator.usable_memory_bytes or math.inf
    fits = np.broadcast_to(found.memory.needed <= held, len(plain))
    # All have one batch and size, so the shortest step gives the shortest training.
    best_of: dict[int, Strategy] = {}
    for index in np.flatnonzero(fits)[np.argsort(step_s[fits], kind="stable")].tolist():
        best_of.setdefault(plain[index].zero_stage, plain[index])
    return tuple(best_of[stage] for stage in stages if stage in best_of)


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
            lora_targets=best.lora_targets,
        )
    except SpecError:
        return None
