"""One workload on one kind of cluster, with all that times and prices a strategy."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import polars as pl

from equipoise import economics
from equipoise.advice.forecast.answer import LEVEL, Terms
from equipoise.advice.plans.length import DEVIATE, stated_length, training_length
from equipoise.advice.plans.mixed import rates
from equipoise.advice.plans.modelled import Model, start_model
from equipoise.advice.plans.plan_record import PlanRecord, record_of
from equipoise.advice.plans.planned import Length, Option, Question
from equipoise.advice.plans.subject import subject, usual_batch, usual_choices
from equipoise.economics import Rates
from equipoise.economics.uncertain import spread
from equipoise.perfmodel.estimate import Estimates, Seconds, estimate
from equipoise.perfmodel.fastest import fastest
from equipoise.perfmodel.goodput import goodput_fraction
from equipoise.perfmodel.grid import Grid, Numbers, grid
from equipoise.perfmodel.job import Job
from equipoise.perfmodel.load import Load, workload_load
from equipoise.perfmodel.machine import Machine, machine, stacked
from equipoise.perfmodel.memory import Memory
from equipoise.perfmodel.parameters import Parameters
from equipoise.perfmodel.parameters import stacked as stacked_parameters
from equipoise.perfmodel.search import Searched
from equipoise.perfmodel.space import Space, Value
from equipoise.scaling.law import FloatArray
from equipoise.spec.cluster import Cluster, cluster
from equipoise.spec.strategy import DTYPE_OF, Precision, Strategy
from equipoise.spec.workload import Workload

# The precision to train in unless told: the first of these whose rate the chip states.
_USUAL_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Options, and equally likely times of the training by each: (n_draws, n_options)."""

    options: tuple[Option, ...]
    drawn_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A workload on a kind of cluster. choices: values that knobs may take.

    drawn: the model's equally likely parameters as one. global_batch_samples: None where it is to be chosen.
    num_best: layouts that a search is to tell.
    """

    workload: Workload
    cluster: Cluster
    load: Load
    rates: Rates
    length: Length
    model: Model
    drawn: Parameters
    choices: Mapping[str, tuple[Value, ...]]
    global_batch_samples: int | None
    num_best: int

    @property
    def record(self) -> PlanRecord:
        """How wrong plans of such models were."""
        return record_of("other" if self.workload.transformer is None else "transformer")

    def batches(self, num_accelerators: int) -> tuple[int, ...]:
        """Global batches worth a try: the one given, or those published results span, in even steps.

        Steps are powers of two and three halves of them, and powers of two of the number of accelerators.
        """
        if self.global_batch_samples is not None:
            return (self.global_batch_samples,)
        if self.length.batches is None:
            usual = usual_batch(self.workload)
            samples = float(self.length.samples(np.array([float(usual)]))[0])
            return (max(1, min(usual, math.floor(samples))),)
        least, most = self.length.batches
        steps = range(math.ceil(math.log2(most)) + 1)
        tried = {factor * 2**step for step in steps for factor in (1, 3, num_accelerators)}
        return tuple(sorted(each for each in tried if least <= each <= most)) or (least,)

    def searched(
        self, num_accelerators: int, *, choices: Mapping[str, tuple[Value, ...]] | None = None
    ) -> Searched:
        """The strategies that train fastest on so many accelerators; money and energy go with the time.

        choices: in place of the setting's own.
        """
        setting = self if choices is None else replace(self, choices=choices)
        return setting.surveyed((num_accelerators,))[0]

    def surveyed(self, sizes: Sequence[int]) -> tuple[Searched, ...]:
        """The strategies that train fastest, by number of accelerators: all sizes at once."""
        alike: dict[Machine, list[int]] = defaultdict(list)
        for index, size in enumerate(sizes):
            alike[machine(replace(self.cluster, num_accelerators=size))].append(index)
        found: dict[int, Searched] = {}
        for nodes, indices in alike.items():
            job = Job(
                load=self.load, machine=nodes, parameters=self.model.parameters, num_steps=self._num_steps
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

    def _num_steps(self, global_batch_samples: Numbers) -> Numbers:
        return self.length.samples(global_batch_samples) / global_batch_samples

    def timed(self, strategies: Sequence[Strategy]) -> Timed:
        """What strategies take, each in full, with intervals."""
        if not strategies:
            return Timed(options=(), drawn_s=np.empty((len(self.model.draws), 0)))
        rows = _Rows(setting=self, strategies=tuple(strategies))
        estimates, drawn = rows.estimates(), rows.drawn_step_s()
        widths = _log_half_widths(drawn, estimates.step_s, self.model.log_half_width)
        num_steps = self._num_steps(rows.grid.global_batch_samples)
        goodput = goodput_fraction(rows.grid.num_accelerators)
        return Timed(
            options=tuple(
                self._option(each, estimates, index, float(widths[index]))
                for index, each in enumerate(strategies)
            ),
            drawn_s=np.asarray(drawn * num_steps / goodput),
        )

    def _option(self, chosen: Strategy, estimates: Estimates, index: int, log_half_width: float) -> Option:
        def at(values: Numbers) -> float:
            return float(values[index if values.ndim else ()])

        batch, size = chosen.global_batch_samples, chosen.num_accelerators
        samples = float(self.length.samples(np.array([float(batch)]))[0])
        goodput = float(goodput_fraction(size))
        time_s = at(estimates.step_s) * samples / batch / goodput
        # Of steps alike those it was calibrated on a model knows more than of whole trainings by others.
        known = math.hypot(log_half_width, DEVIATE * self.length.log_sd(float(batch)))
        width = max(known, self.record.log_half_width)
        time = spread(time_s, width, level=LEVEL)
        return Option(
            accelerator=self.cluster.accelerator.slug,
            strategy=chosen,
            step_s=at(estimates.step_s),
            seconds={each.name: at(getattr(estimates.seconds, each.name)) for each in fields(Seconds)},
            memory_bytes=at(estimates.memory.needed),
            memory={each.name: at(getattr(estimates.memory, each.name)) for each in fields(Memory)},
            samples=samples,
            goodput=goodput,
            time=time,
            flop_share=self._flop_share(chosen, at(estimates.step_s)),
            bill=economics.bill(size, time, self.rates),
        )

    def _flop_share(self, chosen: Strategy, step_s: float) -> float | None:
        """FLOP of the model over those of the accelerators' peak; None where either is unknown."""
        peak = self.cluster.accelerator.peak_flop_per_s(DTYPE_OF[chosen.precision])
        flop = replace(self.workload, trained=chosen.trained).train_flop_per_sample
        if peak is None or flop is None:
            return None
        return flop * chosen.global_batch_samples / (step_s * peak * chosen.num_accelerators)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Strategies of any sizes, each on a cluster of its own size."""

    setting: Setting
    strategies: tuple[Strategy, ...]

    @property
    def grid(self) -> Grid:
        """The strategies as flat rows."""
        return grid(self.strategies)

    def estimates(self) -> Estimates:
        """Time and memory by the setting's parameters; arrays of shape (n_strategies,) or ()."""
        return estimate(self.setting.load, self._machines(), self.grid, self.setting.model.parameters)

    def drawn_step_s(self) -> FloatArray:
        """Equally likely seconds of a step: (n_draws, n_strategies)."""
        found = estimate(self.setting.load, self._machines(), self.grid, self.setting.drawn).step_s
        return np.broadcast_to(found, (len(self.setting.model.draws), *self.grid.shape))

    def _machines(self) -> Machine:
        nodes = self.setting.cluster
        sizes = [each.num_accelerators for each in self.strategies]
        known = {size: machine(replace(nodes, num_accelerators=size)) for size in set(sizes)}
        return stacked([known[size] for size in sizes])


def _log_half_widths(drawn_s: FloatArray, step_s: Numbers, log_half_width: float) -> FloatArray:
    """Half the width of the interval of each step's time, of its logarithm.

    drawn_s: (n_draws, n_strategies) equally likely times. log_half_width: of what the model gets wrong.
    Assumes that what the parameters leave open and what the model gets wrong otherwise are independent.
    """
    low, high = np.quantile(np.log(drawn_s / step_s), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.asarray(np.hypot(np.maximum(high, -low), log_half_width))


def setting(
    question: Question,
    terms: Terms,
    scores: pl.DataFrame | None,
    model: Model | None = None,
    *,
    length: Length | None = None,
) -> Setting:
    """All that a question needs to be answered.

    scores: the table `scores`, for samples against batch. model: in place of the question's profile. length:
    of the training, where it is known from another question.
    Raises SpecError for names that are not known.
    """
    about = subject(question.workload)
    nodes = cluster(
        question.accelerator,
        num_accelerators=question.most,
        power_cap_w=question.power_cap_w,
        **question.node,
    )
    choices = usual_choices(dict(question.choices), about)
    choices.setdefault("precision", (_usual_precision(nodes),))
    calibrated = model or start_model(question, nodes)
    return Setting(
        workload=about,
        cluster=nodes,
        load=workload_load(about),
        rates=rates(nodes.accelerator, terms),
        length=length or length_of(question, about, scores),
        model=calibrated,
        drawn=stacked_parameters(calibrated.draws),
        choices=choices,
        global_batch_samples=question.global_batch_samples,
        num_best=question.num_best,
    )


def length_of(question: Question, about: Workload, scores: pl.DataFrame | None) -> Length:
    """How long the training of a question is. Raises UsageError for what is no length."""
    stated = stated_length(about, samples=question.training_samples, tokens=question.training_tokens)
    return training_length(about, scores, stated_samples=stated)


def _usual_precision(nodes: Cluster) -> Precision:
    """The precision that training takes on a chip unless told."""
    chip = nodes.accelerator
    stated = [name for name in _USUAL_PRECISIONS if chip.peak_flop_per_s(DTYPE_OF[name]) is not None]
    return stated[0] if stated else _USUAL_PRECISIONS[0]
