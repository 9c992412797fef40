"""One workload on one kind of cluster with all that prices and times a strategy: strategies in, options out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import polars as pl

from equipoise import economics
from equipoise.advice.answer import LEVEL, Terms
from equipoise.advice.length import DEVIATE, stated_length, training_length
from equipoise.advice.modelled import Model
from equipoise.advice.planned import Length, Option, Question
from equipoise.advice.subject import subject, usual_batch, usual_choices
from equipoise.economics import Rates
from equipoise.perfmodel.estimate import Estimates, Seconds, estimate
from equipoise.perfmodel.grid import Grid, Numbers, grid
from equipoise.perfmodel.load import Load, workload_load
from equipoise.perfmodel.machine import Machine, machine
from equipoise.perfmodel.memory import Memory
from equipoise.perfmodel.search import Searched, search
from equipoise.perfmodel.space import Space, Value
from equipoise.scaling.law import FloatArray
from equipoise.spec.cluster import Cluster, cluster
from equipoise.spec.strategy import DTYPE_OF, PRECISIONS, Strategy
from equipoise.spec.workload import Workload
from equipoise.stats import Interval

# The precision to train in unless told: the first of these whose rate the chip states.
_USUAL_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A workload on a kind of cluster. choices: values knobs may take. usual: a batch where none is given or fitted."""

    workload: Workload
    cluster: Cluster
    load: Load
    machine: Machine
    rates: Rates
    length: Length
    model: Model
    choices: Mapping[str, tuple[Value, ...]]
    global_batch_samples: int | None

    def batches(self, num_accelerators: int) -> tuple[int, ...]:
        """Global batches worth a try: the one given, or those published results span, in even steps.

        Steps are powers of two, three halves of them, and what the accelerators can share out in the same way.
        """
        if self.global_batch_samples is not None:
            return (self.global_batch_samples,)
        if self.length.batches is None:
            return (usual_batch(self.workload),)
        least, most = self.length.batches
        steps = range(math.ceil(math.log2(most)) + 1)
        tried = {2**step for step in steps} | {3 * 2**step for step in steps}
        tried |= {num_accelerators * 2**step for step in steps}
        return tuple(sorted(each for each in tried if least <= each <= most)) or (least,)

    def searched(
        self, num_accelerators: int, *, num_best: int, choices: Mapping[str, tuple[Value, ...]] | None = None
    ) -> Searched:
        """The strategies that train fastest on so many accelerators; money and energy go with the time."""

        def time_s(mesh: Grid, estimates: Estimates) -> Numbers:
            batch = mesh.global_batch_samples
            return np.asarray(estimates.step_s * (self.length.samples(batch) / batch))

        space = Space(
            num_accelerators=num_accelerators,
            global_batches=self.batches(num_accelerators),
            choices=self.choices if choices is None else choices,
        )
        return search(
            self.load, self.machine, space, self.model.parameters, objectives=(time_s,), num_best=num_best
        )

    def options(self, strategies: Sequence[Strategy]) -> tuple[Option, ...]:
        """What strategies take, each in full."""
        if not strategies:
            return ()
        rows = grid(strategies)
        estimates = estimate(self.load, self.machine, rows, self.model.parameters)
        widths = self._log_half_widths(rows, np.broadcast_to(estimates.step_s, rows.shape))
        return tuple(
            self._option(each, estimates, index, float(widths[index]))
            for index, each in enumerate(strategies)
        )

    def curves_s(self, strategies: Sequence[Strategy]) -> FloatArray:
        """Equally likely times of the training by each strategy: (n_draws, n_strategies)."""
        rows = grid(strategies)
        batch = rows.global_batch_samples
        steps = self.length.samples(batch) / batch
        return np.array(
            [
                np.broadcast_to(estimate(self.load, self.machine, rows, drawn).step_s, rows.shape) * steps
                for drawn in self.model.draws
            ]
        )

    def _log_half_widths(self, rows: Grid, step_s: Numbers) -> FloatArray:
        """Half the width of each step's interval, of its logarithm."""
        if self.model.log_half_width is not None:
            return np.full(rows.shape, self.model.log_half_width)
        drawn = np.array(
            [
                np.broadcast_to(estimate(self.load, self.machine, rows, each).step_s, rows.shape)
                for each in self.model.draws
            ]
        )
        low, high = np.quantile(np.log(drawn / step_s), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return np.asarray(np.maximum(high, -low))

    def _option(self, chosen: Strategy, estimates: Estimates, index: int, log_half_width: float) -> Option:
        shape = (max(np.broadcast_shapes(estimates.step_s.shape, (1,))),)

        def at(values: Numbers) -> float:
            return float(np.broadcast_to(values, shape)[index])

        batch = chosen.global_batch_samples
        samples = float(self.length.samples(np.array([float(batch)]))[0])
        step_s = at(estimates.step_s)
        time_s = step_s * samples / batch
        width = math.hypot(log_half_width, DEVIATE * self.length.log_sd(float(batch)))
        return Option(
            accelerator=self.cluster.accelerator.slug,
            strategy=chosen,
            step_s=step_s,
            seconds={each.name: at(getattr(estimates.seconds, each.name)) for each in fields(Seconds)},
            memory={each.name: at(getattr(estimates.memory, each.name)) for each in fields(Memory)},
            samples=samples,
            time=Interval(
                value=time_s, low=time_s * math.exp(-width), high=time_s * math.exp(width), level=LEVEL
            ),
            flop_share=self._flop_share(chosen, step_s),
            bill=economics.bill(chosen.num_accelerators, time_s, self.rates),
        )

    def _flop_share(self, chosen: Strategy, step_s: float) -> float | None:
        """FLOP of the model over those of the accelerators' peak; None where either is unknown."""
        peak = self.cluster.accelerator.peak_flop_per_s(DTYPE_OF[chosen.precision])
        flop = self.workload.train_flop_per_sample
        if peak is None or flop is None:
            return None
        return flop * chosen.global_batch_samples / (step_s * peak * chosen.num_accelerators)


def setting(question: Question, terms: Terms, scores: pl.DataFrame | None, model: Model) -> Setting:
    """All that a question needs to be answered.

    scores: the table `scores`, for samples against batch. Raises SpecError for names that are not known.
    """
    about = subject(question.workload)
    nodes = cluster(question.accelerator, num_accelerators=question.most, **question.node)
    rates_of_chip = machine(nodes)
    choices = usual_choices(dict(question.choices), about)
    choices.setdefault("precision", (_usual_precision(nodes),))
    return Setting(
        workload=about,
        cluster=nodes,
        load=workload_load(about),
        machine=rates_of_chip,
        rates=economics.rates(
            nodes.accelerator, own_price=terms.usd_per_accelerator_hour, region=terms.region
        ),
        length=training_length(
            about,
            scores,
            stated_samples=stated_length(
                about, samples=question.training_samples, tokens=question.training_tokens
            ),
        ),
        model=model,
        choices=choices,
        global_batch_samples=question.global_batch_samples,
    )


def _usual_precision(nodes: Cluster) -> str:
    """The precision that training takes on a chip unless told; bf16, or the widest it has a rate for."""
    chip = nodes.accelerator
    stated = [name for name in _USUAL_PRECISIONS if chip.peak_flop_per_s(DTYPE_OF[name]) is not None]
    return stated[0] if stated else PRECISIONS[0]
