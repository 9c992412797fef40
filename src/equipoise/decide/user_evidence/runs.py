"""The user's runs by set-up, and their steps as arrays for the performance model."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from equipoise.decide.evidence import LEAST_LOG_SD, UserRun
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.strategies.size_searches import SEARCH_CACHE, StrategySearches
from equipoise.decide.strategies.strategy_search import OWN_STEPS_LOG_SD, Problem
from equipoise.errors import InputError
from equipoise.intervals import DEVIATE
from equipoise.notes import Note
from equipoise.perfmodel import load as loads
from equipoise.perfmodel.layouts import divisors, grid
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import machine, stacked
from equipoise.perfmodel.parameters import Parameters
from equipoise.scaling.laws import FloatArray
from equipoise.spec.cluster import Cluster
from equipoise.spec.strategy import (
    Precision,
    Strategy,
    Value,
    has_no_higher_peak,
    precision_named,
    read_option,
    strategy,
)

if TYPE_CHECKING:
    from equipoise.calibration.step_rows import StepRows
    from equipoise.runs.readers.measurements import Measurements


class UserRuns(Struct, frozen=True, kw_only=True):
    """The runs of one workload in a folder. trainings: whole trainings, if any were timed.

    machines: names of their accelerators as stated. other_workloads: of other finished runs in the folder.
    num_of_asked_length: runs without a sequence length, which are taken to have the question's.
    """

    where: str
    set_ups: tuple[UserRun, ...] = ()
    trainings: "Measurements | None" = None
    machines: tuple[str, ...] = ()
    other_workloads: tuple[str, ...] = ()
    num_of_asked_length: int = 0
    notes: tuple[Note, ...] = ()

    def on(self, accelerator: str) -> tuple[UserRun, ...]:
        """The set-ups measured on an accelerator, or on an unstated one."""
        return tuple(each for each in self.set_ups if each.accelerator in {None, accelerator})

    def precision_for(self, accelerator: str) -> Precision | None:
        """The precision of the set-ups on an accelerator, or of all if none ran on it; None for several."""
        counted = self.on(accelerator) or self.set_ups
        found = {named for each in counted if (named := _precision(each)) is not None}
        return found.pop() if len(found) == 1 else None

    def trainings_on(self, accelerator: str, precisions: Sequence[Value] = ()) -> "Measurements | None":
        """Whole trainings timed on an accelerator, or on an unstated one, in one precision.

        precisions: preferred ones.
        """
        return None if self.trainings is None else self.trainings.on(accelerator, precisions)

    def asked_about(self, accelerator: str, query: TrainingQuery) -> tuple[UserRun, ...]:
        """The set-ups of `on` with the global batch and a precision stated in the question, if any are.

        A run without a stated precision matches any.
        """
        batch, precisions = query.global_batch_samples, query.precision
        return tuple(
            each
            for each in self.on(accelerator)
            if batch in {None, each.global_batch_samples}
            and (not precisions or each.precision is None or each.precision in precisions)
        )


def of_precisions(
    runs: Sequence[UserRun], precisions: Sequence[Value], *, convertible: Collection[str], is_stated: bool
) -> tuple[UserRun, ...]:
    """The runs whose times count for some precisions: those in an unstated one, those that the model
    converts, and those that are not faster for their precision.

    precisions: those of the strategies searched. convertible: ids of the runs that the model converts.
    is_stated: whether the question states the precisions; if not and no run counts, all runs do.
    """
    asked = [each for name in precisions if (each := precision_named(str(name))) is not None]

    def counts(run: UserRun) -> bool:
        ran = _precision(run)
        if ran is None or run.run_ids[0] in convertible:
            return True
        return any(has_no_higher_peak(ran, than=each) for each in asked)

    found = tuple(filter(counts, runs))
    return found if found or is_stated else tuple(runs)


def num_accumulated(strategy: str | None) -> int | None:
    """Micro-batches between gradient exchanges in plain data parallelism; None for other methods."""
    if strategy is None:
        return 1
    try:
        from equipoise.bench.training import PLAIN, method  # noqa: PLC0415 - only where runs were measured

        found, argument = method(strategy)
    except InputError:
        return None
    return found.num_accumulated(argument) if found.name in PLAIN else None


_NOTICED = 0.02
# Methods besides plain data parallelism that the performance model covers.
_OTHER_MODELLED_METHODS = frozenset({"fsdp", "fp16", "bf16", "localsgd"})


class UserSteps(Struct, frozen=True, kw_only=True):
    """Set-ups that the performance model covers. measured_s, log_sds: measured step time and its log sd;
    sizes: accelerators; all (n_set_ups,). are_assumed: whether strategies were assumed, see `UserRun`.
    """

    rows: "StepRows"
    measured_s: FloatArray
    log_sds: FloatArray
    sizes: FloatArray
    strategies: tuple[Strategy, ...]
    run_ids: tuple[str, ...]
    are_assumed: tuple[bool, ...]

    def taken(self, indices: NDArray[np.intp]) -> "UserSteps":
        """The set-ups at these indices."""
        return UserSteps(
            rows=self.rows.taken(indices),
            measured_s=self.measured_s[indices],
            log_sds=self.log_sds[indices],
            sizes=self.sizes[indices],
            strategies=tuple(self.strategies[each] for each in indices),
            run_ids=tuple(self.run_ids[each] for each in indices),
            are_assumed=tuple(self.are_assumed[each] for each in indices),
        )

    def log_ratios(self, parameters: Parameters) -> FloatArray:
        """log(measured / modelled) of every set-up; (n_set_ups,)."""
        return np.asarray(np.log(self.measured_s / self.rows.step_s(parameters)))

    def over_best_rates(self, parameters: Parameters) -> float:
        """The least measured step time over what its computing takes at the best rates; at most 1."""
        least_s = self.rows.compute_s(parameters.at_best_rates())
        return min(1.0, float(np.min(self.measured_s / least_s)))


class Recast(Struct, frozen=True, kw_only=True):
    """Conversion from a measured set-up to the advised strategy at the same size.

    factor: modelled training time with the advised strategy over that with the set-up's. log_sd: of its
    logarithm, from the model's parameters. keeps_strategy: whether the set-up counts as it ran, e.g. without
    a stated precision; factor is then the time of whole trainings over their own steps, times power_factor,
    the modelled slowdown by a power limit. conversion: part of the factor due to the change of strategy.
    is_of_precision: whether it ran in the advised precision, as far as is known. least_s: the least converted
    time, of `least_ratios`, if factor does not include it.
    """

    factor: float
    log_sd: float
    keeps_strategy: bool = False
    conversion: float = 1.0
    is_of_precision: bool = True
    power_factor: float = 1.0
    least_s: float = 0.0

    @property
    def is_other(self) -> bool:
        """Whether the advised strategy differs noticeably."""
        return abs(self.factor - 1.0) > _NOTICED


def whole_trainings(
    runs: Sequence[UserRun], searches: StrategySearches, ran_on: Cluster
) -> dict[str, Recast]:
    """By run id, the factor from a set-up's steps to a whole training, as in published trainings.

    ran_on: the searched cluster without its power limit.
    """
    problem, found = searches.problem, {}
    factor = problem.time_per_own_step_time
    log_sd = OWN_STEPS_LOG_SD if factor != 1.0 else 0.0
    for each in runs:
        slower = 1.0
        if ran_on.accelerator != problem.cluster.accelerator:
            slower = _power_limit_slowdown(searches, replace(problem, cluster=ran_on), each.num_accelerators)
        if factor != 1.0 or slower != 1.0:
            found[each.run_ids[0]] = Recast(
                factor=factor * slower, log_sd=log_sd, keeps_strategy=True, power_factor=slower
            )
    return found


def _power_limit_slowdown(searches: StrategySearches, free: Problem, size: int) -> float:
    """Modelled slowdown of a step by a power limit, for the best strategy at the nearest size with one."""
    best = [each.best for each in searches.sizes if each.best is not None]
    if not best:
        return 1.0
    near = min(best, key=lambda each: abs(math.log2(each.strategy.num_accelerators / size))).strategy
    limited_s, free_s = (
        float(np.ravel(each.estimated((near,), each.model.parameters).step_s)[0])
        for each in (searches.problem, free)
    )
    return limited_s / free_s


def other_batches(runs: Sequence[UserRun], searches: StrategySearches) -> dict[str, float]:
    """Additional log sd, by run id, of set-ups whose batch differs from the advised one at their size.

    For set-ups that count as they ran and are not converted to the batch: the modelled effect of the batch on
    the training's time is taken as the half width of a 90 % interval.
    """
    problem = searches.problem
    best = {each.num_accelerators: each.best.strategy for each in searches.sizes if each.best is not None}
    found = {}
    for run in runs:
        advised, batch = best.get(run.num_accelerators), run.global_batch_samples
        if advised is None or advised.global_batch_samples == batch or batch % advised.dp:
            continue
        share = batch // advised.dp
        microbatch = max(each for each in divisors(share) if each <= advised.microbatch_samples)
        try:
            both = advised, replace(advised, global_batch_samples=batch, microbatch_samples=microbatch)
        except InputError:
            continue
        steps_s = np.broadcast_to(problem.estimated(both, problem.model.parameters).step_s, 2)
        times_s = steps_s * problem.num_steps(
            np.array([each.global_batch_samples for each in both], dtype=float)
        )
        found[run.run_ids[0]] = abs(float(np.log(times_s[0] / times_s[1]))) / DEVIATE
    return found


def least_ratios(steps: UserSteps, searches: StrategySearches) -> dict[int, float]:
    """By size, the least plausible time of the best strategy over its modelled time.

    Steps that are faster than modelled because they launch or communicate faster do not show that products
    are faster: a step takes at least what its computing takes at the best rates, or less by the factor by
    which a run went below that.
    """
    problem, parameters = searches.problem, searches.problem.model.parameters
    best = {each.num_accelerators: each.best for each in searches.sizes if each.best is not None}
    if not best:
        return {}
    computing = problem.estimated([each.strategy for each in best.values()], parameters.at_best_rates())
    least_s = np.broadcast_to(computing.seconds.compute, len(best)) * steps.over_best_rates(parameters)
    return {
        size: seconds / each.step_s
        for (size, each), seconds in zip(best.items(), least_s.tolist(), strict=True)
    }


def recasts(steps: UserSteps, searches: StrategySearches, least: Mapping[int, float]) -> dict[str, Recast]:
    """Conversions by run id, for sizes at which searches found a strategy.

    least: from `least_ratios`, of the same steps and searches.
    Source: ratios of modelled times, in which common errors cancel draw by draw.
    """
    problem, model = searches.problem, searches.problem.model
    best = {each.num_accelerators: each for each in searches.sizes if each.best is not None}
    batches = np.array([each.global_batch_samples for each in steps.strategies], dtype=float)
    num_steps = problem.num_steps(batches)
    here_s = steps.rows.step_s(model.parameters) * num_steps
    drawn_s = steps.rows.step_s(model.drawn) * num_steps
    found = {}
    for at, (run_id, size) in enumerate(zip(steps.run_ids, steps.sizes.astype(int).tolist(), strict=True)):
        searched = best.get(size)
        if searched is not None and searched.best is not None:
            modelled_s = searched.best.work_s.value
            measured_s = float(steps.measured_s[at] * num_steps[at])
            factor = max(float(modelled_s / here_s[at]), least[size] * modelled_s / measured_s)
            found[run_id] = Recast(
                factor=factor,
                log_sd=float(np.std(np.log(searched.drawn_s / drawn_s[:, at]))),
                conversion=factor / problem.time_per_own_step_time,
                is_of_precision=searched.best.strategy.precision == steps.strategies[at].precision,
            )
    return found


def recasts_beyond(
    steps: UserSteps, searches: StrategySearches, least: Mapping[int, float]
) -> dict[int, dict[str, Recast]]:
    """Conversions by size and run id, for larger sizes than ran, with the batch per accelerator that ran.

    For a run's strategy with more data-parallel ranks. Arguments and source: as for `recasts`.
    """
    problem, model = searches.problem, searches.problem.model
    asked = [
        (searched, run_id, larger)
        for searched in searches.sizes
        if searched.best is not None
        for run_id, ran in zip(steps.run_ids, steps.strategies, strict=True)
        if (larger := _on_more(ran, searched.num_accelerators)) is not None
    ]
    if not asked:
        return {}
    strategies = [larger for *_, larger in asked]
    num_steps = problem.num_steps(np.array([each.global_batch_samples for each in strategies], dtype=float))
    shape = len(model.draws), len(asked)
    here_s = np.broadcast_to(problem.estimated(strategies, model.parameters).step_s, shape[1:]) * num_steps
    drawn_s = np.broadcast_to(problem.estimated(strategies, model.drawn).step_s, shape) * num_steps
    found: dict[int, dict[str, Recast]] = {}
    for at, (searched, run_id, larger) in enumerate(asked):
        assert searched.best is not None
        size, modelled_s = searched.num_accelerators, searched.best.work_s.value
        factor = modelled_s / float(here_s[at])
        found.setdefault(size, {})[run_id] = Recast(
            factor=factor,
            log_sd=float(np.std(np.log(searched.drawn_s / drawn_s[:, at]))),
            conversion=factor / problem.time_per_own_step_time,
            is_of_precision=searched.best.strategy.precision == larger.precision,
            least_s=least[size] * modelled_s,
        )
    return found


def _on_more(ran: Strategy, size: int) -> Strategy | None:
    """A strategy on more accelerators by data parallelism, with its batch per rank; None if invalid."""
    others = ran.num_accelerators // ran.dp
    if size <= ran.num_accelerators or size % others or ran.global_batch_samples % ran.dp:
        return None
    dp = size // others
    try:
        return replace(ran, dp=dp, global_batch_samples=ran.global_batch_samples // ran.dp * dp)
    except InputError:
        return None


def user_steps(
    runs: Sequence[UserRun],
    load: Load,
    nodes: Cluster,
    parameters: Parameters,
    *,
    unstated: Mapping[str, Value] = MappingProxyType({}),
) -> UserSteps | None:
    """The runs that the performance model covers; None if it covers none.

    nodes: their cluster, of any size. parameters: with which a finite time must result. unstated: options of
    runs that do not state them: those of the advised strategy, so that neither is favoured, and runs of
    adapters are not compared with a training of all weights.
    """
    from equipoise.calibration.step_rows import StepRows  # noqa: PLC0415 - only where runs were measured

    pairs = [(run, found) for run in runs if (found := _strategy(run, unstated)) is not None]
    if not pairs:
        return None
    sizes = [run.num_accelerators for run, _ in pairs]
    rows = StepRows(
        load=loads.stacked([load] * len(pairs)),
        machine=stacked([machine(replace(nodes, num_accelerators=size)) for size in sizes]),
        grid=grid([found for _, found in pairs]),
    )
    timed = np.flatnonzero(np.isfinite(rows.step_s(parameters)) & (rows.step_s(parameters) > 0))
    if not len(timed):
        return None
    kept = [pairs[index] for index in timed]
    return UserSteps(
        rows=rows.taken(timed),
        measured_s=np.array([run.global_batch_samples / run.samples_per_s for run, _ in kept]),
        log_sds=np.array([max(run.log_sd, LEAST_LOG_SD) for run, _ in kept]),
        sizes=np.array([run.num_accelerators for run, _ in kept], dtype=float),
        strategies=tuple(found for _, found in kept),
        run_ids=tuple(run.run_ids[0] for run, _ in kept),
        are_assumed=tuple(run.is_assumed for run, _ in kept),
    )


def as_they_fit(
    runs: Sequence[UserRun], problem: Problem, unstated: Mapping[str, Value]
) -> tuple[UserRun, ...]:
    """The runs, with those whose assumed strategy exceeds their memory changed to the fastest fitting one.

    The new strategy keeps the run's batch, and the stated options if possible. Without a stated strategy a
    run is read as DDP, and without a stated micro-batch as one micro-batch per step.
    """
    return tuple(_as_it_fits(each, problem, unstated) for each in runs)


def _as_it_fits(run: UserRun, problem: Problem, unstated: Mapping[str, Value]) -> UserRun:
    read, held = _strategy(run, unstated), problem.cluster.accelerator.usable_memory_bytes
    if read is None or held is None:
        return run
    needed = problem.estimated((read,), problem.model.parameters).memory.needed
    if np.ravel(needed)[0] <= held:
        return run
    usual = {**problem.choices, "precision": (read.precision,), "implementation": (read.implementation,)}
    for stated in (_stated_values(run, read), {}):
        asked = replace(
            problem,
            training=replace(problem.training, global_batch_samples=run.global_batch_samples),
            choices={**usual, **stated},
        )
        (found,) = SEARCH_CACHE.searches(asked, (run.num_accelerators,)).sizes
        if found.best is not None:
            return replace(run, strategy=found.best.strategy.text(), is_assumed=True)
    return run


# Options of a strategy determined by the name of a method.
_METHOD_OPTIONS: Final = ("tp", "pp", "cp", "ep", "zero_stage", "compression", "sync_period")


def _stated_values(run: UserRun, read: Strategy) -> dict[str, tuple[Value, ...]]:
    """The options of its strategy that a run states, as choices of a search."""
    if not run.strategy:
        return {}
    names = {*stated_options(run.strategy)} if "=" in run.strategy else {*_METHOD_OPTIONS}
    return {name: (getattr(read, name),) for name in names - {"dp", "global_batch_samples"}}


def stated_options(text: str) -> dict[str, Value]:
    """The options in a strategy's text form, by field. Raises SpecError for unknown options."""
    return dict(read_option(each, where=f"strategy {text!r}") for each in text.replace(",", " ").split())


def _precision(run: UserRun) -> Precision | None:
    """The precision that a set-up states, in its strategy or separately."""
    stated: object = run.precision or ""
    if "=" in (run.strategy or ""):
        with suppress(InputError):
            stated = stated_options(str(run.strategy)).get("precision", stated)
    return precision_named(str(stated))


def _stated_strategy(run: UserRun, unstated: dict[str, Any], precision: Precision | None) -> Strategy | None:
    """The strategy of a text form; None for another number of accelerators, or if incomplete.

    The text form of a trace is complete. Options missing in a user's file are from the run: its remaining
    accelerators are data parallel, with one micro-batch per step, or micro-batches of one sample in a
    pipeline.
    """
    text = str(run.strategy)
    stated = stated_options(text)
    if "global_batch_samples" in stated:
        return strategy(text)
    if precision is None and "precision" not in stated:
        return None
    dp = run.num_accelerators // math.prod(int(stated.get(axis, 1)) for axis in ("tp", "pp", "cp"))
    is_pipeline = int(stated.get("pp", 1)) > 1
    adapters = {"lora_rank", "lora_targets"} if stated.get("trained") == "full" else set()
    usual = {name: value for name, value in unstated.items() if name not in adapters} | {
        "dp": dp,
        "microbatch_samples": 1 if is_pipeline else max(1, run.global_batch_samples // max(dp, 1)),
        "global_batch_samples": run.global_batch_samples,
        "precision": precision,
    }
    found = Strategy(**{**usual, **stated})
    return found if found.num_accelerators == run.num_accelerators else None


def _strategy(run: UserRun, unstated: Mapping[str, Value]) -> Strategy | None:
    """The strategy of a set-up; None if the model does not cover it, or without a stated precision."""
    size, batch = run.num_accelerators, run.global_batch_samples
    precision = precision_named(run.precision or "")
    usual: dict[str, Any] = {**unstated, **({"implementation": "eager"} if run.is_eager else {})}
    try:
        if "=" in (run.strategy or ""):
            return _stated_strategy(run, usual, precision)
        if precision is None:
            return None
        from equipoise.bench.training import PLAIN, method  # noqa: PLC0415 - only where runs were measured

        found, argument = method(run.strategy or ("single" if size == 1 else "ddp"))
        if found.name not in PLAIN | _OTHER_MODELLED_METHODS:
            return None
        return Strategy(
            dp=size,
            microbatch_samples=max(1, batch // (size * found.num_accumulated(argument))),
            global_batch_samples=batch,
            zero_stage=3 if found.name == "fsdp" else 0,
            precision=precision,
            **usual,
            compression="fp16" if found.name in {"fp16", "bf16"} else "none",
            sync_period=int(argument or 1) if found.name == "localsgd" else 1,
        )
    except InputError:
        return None
