"""The user's measurements: runs, traces and collectives. This module has traces, and all of them together."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from equipoise.decide.evidence import LEAST_LOG_SD, UserRun
from equipoise.decide.question.field import MAX_ACCELERATORS
from equipoise.decide.question.query import TrainingQuery
from equipoise.decide.user_evidence.runs import UserRuns
from equipoise.errors import DataError, SpecError, UsageError
from equipoise.files import file_names
from equipoise.notes import Note
from equipoise.perfmodel.estimate import estimate
from equipoise.perfmodel.layouts import grid
from equipoise.perfmodel.load import Load
from equipoise.perfmodel.machine import machine
from equipoise.perfmodel.parameters import Parameters
from equipoise.spec import close_names
from equipoise.spec.catalogue import Catalogue
from equipoise.spec.cluster import Cluster
from equipoise.spec.hardware import Accelerator
from equipoise.spec.strategy import MOST_OF_PEAK, Strategy, multiplied_in, read_option, share_of_peak
from equipoise.spec.workload import Workload
from equipoise.stats import by_key
from equipoise.units import format_count, format_milliseconds, listed

if TYPE_CHECKING:
    from equipoise.bench.trace import RankTrace
    from equipoise.calibration.user_collectives import TimedCollectives


_RANKS = "ranks"
# Collectives of data ranks with unsharded weights; others are of other axes or of sharded weights.
_REPLICA_OPERATIONS = frozenset({"allreduce", "broadcast", "reduce"})
# Parameters that explain other collectives.
_SHARDING_PARAMETERS = frozenset({"tp", "pp", "cp", "ep", "zero_stage"})
# Method of training for which no law extrapolates to other sizes.
_UNKNOWN_METHOD = "traced"
# Assumed slowdown by a profiler of a few percent.
_PROFILER_LOG_SD = 0.05
# One or two steps may include logging, saving or waiting for input: in the samples in docs/examples, ranks
# differ by this much in the time of the same step.
_FEW_STEPS_LOG_SD = 0.2
_MIN_STEPS = 3
_MAX_NAMED = 5


class TracedAs(Struct, frozen=True, kw_only=True):
    """The user's statements on traced runs: the number of ranks, and parameters of the strategy."""

    num_ranks: int | None = None
    parameters: tuple[tuple[str, int | str | bool], ...] = ()


class UserTrace(Struct, frozen=True, kw_only=True):
    """One traced run: the mean over its ranks of the median step.

    num_ranks: None if unknown. device: name in the trace; accelerator: its slug, None if unknown. step_s:
    None if no step is marked. exposed_share, idle_share: of a step. log_sd: of step_s. strategy: as stated by
    the user, None if incomplete; missing: what has to be stated. is_other: its collectives are of another
    strategy, so that it is used only at its own size.
    """

    files: tuple[str, ...]
    num_ranks: int | None
    device: str | None
    accelerator: str | None
    step_s: float | None
    log_sd: float
    exposed_share: float | None
    idle_share: float | None
    strategy: Strategy | None
    missing: tuple[str, ...]
    is_other: bool = False
    notes: tuple[str, ...] = ()

    def run(self) -> UserRun | None:
        """The trace as a user run; None if the time per sample is unknown."""
        if self.step_s is None or self.strategy is None or self.missing:
            return None
        found = self.strategy
        return UserRun(
            accelerator=self.accelerator,
            num_accelerators=found.num_accelerators,
            strategy=_UNKNOWN_METHOD if self.is_other else _method(found),
            precision=found.precision,
            global_batch_samples=found.global_batch_samples,
            samples_per_s=found.global_batch_samples / self.step_s,
            log_sd=self.log_sd,
            run_ids=(f"trace {file_names(self.files, 1)}",),
        )


def traced_as(text: str | None) -> TracedAs:
    """Parse a text such as `ranks=8 global_batch=64 precision=bf16`. Raises SpecError or UsageError.

    >>> traced_as("ranks=8 global_batch=64").num_ranks
    8
    """
    found: dict[str, int | str | bool] = {}
    num_ranks = None
    for part in (text or "").replace(",", " ").split():
        name, _, value = part.partition("=")
        if name == _RANKS:
            if not value.isdecimal() or not 1 <= int(value[:12]) <= MAX_ACCELERATORS:
                raise UsageError(f"--traced-as {part[:40]!r}: expected a number of ranks, e.g. ranks=8")
            num_ranks = int(value)
            continue
        if close_names(name, [_RANKS]):
            raise UsageError(f"--traced-as {part[:40]!r}: did you mean {f'{_RANKS}={value}'[:40]!r}?")
        name, known = read_option(part, where="--traced-as")
        if name in found:
            raise UsageError(f"--traced-as: {name} is given twice; keep one")
        found[name] = known
    return TracedAs(num_ranks=num_ranks, parameters=tuple(found.items()))


def user_traces(paths: Sequence[Path], stated: TracedAs, catalogue: Catalogue) -> tuple[UserTrace, ...]:
    """The traced runs in files; traces with equal number of ranks and device belong to one run.

    catalogue: resolves names of devices. Raises DataError if no file can be read.
    """
    from equipoise.bench.trace import read_traces  # noqa: PLC0415 - only where files are given

    reading = read_traces(paths)
    runs = by_key(((each.world_size or 0, each.device_name or ""), each) for each in reading.ranks)
    refused = reading.problems
    if left := refused[_MAX_NAMED:]:
        refused = (*refused[:_MAX_NAMED], f"{len(left)} more were not read: `equipoise trace` lists them.")
    return tuple(
        _traced_run(runs[key], stated, refused if number == 0 else (), catalogue)
        for number, key in enumerate(sorted(runs))
    )


def _traced_run(
    ranks: "Sequence[RankTrace]", stated: TracedAs, refused: tuple[str, ...], catalogue: Catalogue
) -> UserTrace:
    """The run of traced ranks. refused: errors of unreadable files, added to its notes."""
    first = ranks[0]
    world = first.world_size if 0 < (first.world_size or 0) <= MAX_ACCELERATORS else None
    num_ranks = world or stated.num_ranks
    others = _other_operations(ranks, stated)
    notes = [*refused]
    if world and stated.num_ranks is not None and stated.num_ranks != world:
        notes.append(
            f"--traced-as states {format_count(stated.num_ranks)} ranks, but the trace has "
            f"{format_count(world)}: the trace's number is used."
        )
    marked = [each for each in ranks if each.steps and all(step.number is not None for step in each.steps)]
    steps = [[step.step_s for step in each.steps] for each in marked]
    step_s = fmean(median(each) for each in steps) if steps else None
    missing = [] if step_s else ["marked steps: call profiler.step() after each"]
    strategy: Strategy | None = None
    try:
        strategy = _strategy(num_ranks, stated)
        missing.extend(_unstated(num_ranks, stated) if strategy is None else ())
    except SpecError as err:
        missing.append(f"a --traced-as that fits the trace: {err}")
    if strategy is not None and others:
        notes.append(
            f"The trace has collectives beyond data parallelism ({', '.join(others)}): it is "
            f"used only at {format_count(strategy.num_accelerators)} ranks. State the other "
            "parallel axes to use it for more, e.g. "
            '--traced-as "zero_stage=3" or "pp=2".'
        )
    slug = None if first.device_name is None else catalogue.accelerator_slug(first.device_name)
    if first.device_name is not None and slug is None:
        notes.append(
            f"The device {first.device_name[:60]!r} is not known: it is treated as the accelerator "
            "of the question."
        )
    exposed, idle = _shares(ranks)
    return UserTrace(
        files=tuple(dict.fromkeys(each.where for each in ranks)),
        num_ranks=num_ranks,
        device=first.device_name,
        accelerator=slug,
        step_s=step_s or None,
        log_sd=_log_sd(steps),
        exposed_share=exposed,
        idle_share=idle,
        strategy=strategy,
        missing=tuple(missing),
        is_other=bool(others),
        notes=tuple(dict.fromkeys(notes)),
    )


def _other_operations(ranks: "Sequence[RankTrace]", stated: TracedAs) -> list[str]:
    """Collectives not of plain data parallelism, unless the user states parameters that explain them."""
    if _SHARDING_PARAMETERS & {name for name, _ in stated.parameters}:
        return []
    names = {group.partition(" ")[0].replace("_", "") for each in ranks for group in each.collectives.group}
    return sorted(names - _REPLICA_OPERATIONS)


def _unstated(num_ranks: int | None, stated: TracedAs) -> Iterator[str]:
    """Yield what has to be stated for a strategy."""
    if num_ranks is None:
        yield "the number of ranks: --traced-as ranks=N"
    if "global_batch_samples" not in dict(stated.parameters):
        yield "the samples per step over all ranks, which traces do not hold: --traced-as global_batch=N"


def _strategy(num_ranks: int | None, stated: TracedAs) -> Strategy | None:
    """The strategy stated by the user, by default with data parallelism only; None if incomplete.

    Defaults are those of PyTorch: fp32, not compiled, one micro-batch per step.
    Raises SpecError for an invalid strategy.
    """
    parameters = dict(stated.parameters)
    batch = parameters.get("global_batch_samples")
    if num_ranks is None or type(batch) is not int:
        return None
    others = math.prod(int(parameters.get(axis, 1)) for axis in ("tp", "pp", "cp"))
    dp = int(parameters.get("dp", max(1, num_ranks // max(1, others))))
    if dp * others != num_ranks:
        raise SpecError(
            f"its axes make {format_count(dp)} x {format_count(others)} ranks, not the "
            f"{format_count(num_ranks)} that ran"
        )
    usual = {"dp": dp, "microbatch_samples": max(1, batch // dp)}
    return Strategy(**({"precision": "fp32", "implementation": "eager"} | usual | parameters))  # type: ignore[arg-type]  # each value was checked by name


def _method(found: Strategy) -> str:
    """The strategy's name in `bench` if it is plain data parallelism, else its text form."""
    plain = Strategy(
        global_batch_samples=found.global_batch_samples,
        microbatch_samples=found.microbatch_samples,
        dp=found.dp,
        precision=found.precision,
        implementation="eager",
    )
    if found == plain:
        if found.num_microbatches > 1:
            return f"accumulate:{found.num_microbatches}"
        return "single" if found.dp == 1 else "ddp"
    return "fsdp" if found == replace(plain, zero_stage=3) else found.text()


def _shares(ranks: "Sequence[RankTrace]") -> tuple[float | None, float | None]:
    """Shares of exposed communication and of idle time in all steps together."""
    steps = [step for each in ranks for step in each.steps]
    whole = math.fsum(step.step_s for step in steps)
    exposed = [step.exposed_s for step in steps if step.exposed_s is not None]
    if not whole > 0 or len(exposed) < len(steps):
        return None, None
    return math.fsum(exposed) / whole, math.fsum(step.idle_s for step in steps) / whole


def _log_sd(steps: Sequence[Sequence[float]]) -> float:
    """Log sd of the step time from its repetitions and the profiler.

    Assumes a rank's steps are independent; ranks of one step are not, because they wait for each other.
    """
    longest = max(steps, key=len, default=())
    if len(longest) < _MIN_STEPS:
        own = _FEW_STEPS_LOG_SD
    else:
        # 1.25: standard error of a median over that of a mean, for normal values.
        own = 1.25 * float(np.std(np.log(longest), ddof=1)) / math.sqrt(len(longest))
    return max(LEAST_LOG_SD, math.hypot(own, _PROFILER_LOG_SD))


def with_traces(own: UserRuns | None, traces: Sequence[UserTrace]) -> UserRuns | None:
    """The user's runs, with the traces that give a time per sample added."""
    found = tuple(run for each in traces if (run := each.run()) is not None)
    if not found:
        return own
    if own is None:
        own = UserRuns(where="your traces")
    machines = {*own.machines, *(each.accelerator for each in found if each.accelerator is not None)}
    return replace(own, set_ups=(*own.set_ups, *found), machines=tuple(sorted(machines)))


def unusable(traces: Sequence[UserTrace]) -> tuple[str, ...]:
    """What is missing for traces to give times."""
    return tuple(f"{item} (of {file_names(each.files, 1)})" for each in traces for item in each.missing)


def refuse_unnamed_traces(traces: Sequence[UserTrace], accelerators: Sequence[str]) -> None:
    """Raise UsageError if a question has several accelerators, and a trace does not name its own."""
    unnamed = next((each for each in traces if each.accelerator is None), None)
    if unnamed is not None and len(set(accelerators)) > 1:
        raise UsageError(
            f"--trace {file_names(unnamed.files, 1)}: it names no known accelerator, and the question has "
            f"{len(set(accelerators))}: give only the one it ran on"
        )


def refuse_unnamed_runs(runs: UserRuns, accelerators: Sequence[str]) -> None:
    """Raise UsageError if a question has several accelerators, and runs do not name theirs."""
    trained = None if runs.trainings is None else runs.trainings.accelerators
    num_unnamed = [*(each.accelerator for each in runs.set_ups), *(trained or ())].count(None)
    if num_unnamed and len(set(accelerators)) > 1:
        raise UsageError(
            f"--runs {runs.where}: {num_unnamed} of its set-ups state no accelerator, and the question has "
            f"{len(set(accelerators))}: add a column accelerator, or give only the one they ran on"
        )


# Causes in the model that traces show as exposed communication, including waits for slower ranks.
_EXPOSED = ("tp", "cp", "ep", "pp", "dp", "waiting")


class TraceCheck(Struct, frozen=True, kw_only=True):
    """A traced run and the modelled step of its strategy; None without one."""

    trace: UserTrace
    modelled_step_s: float | None = None
    modelled_exposed_share: float | None = None


def possible(trace: UserTrace, workload: Workload, chip: Accelerator | None) -> UserTrace:
    """The trace; with an entry in `missing` if its step is faster than the chips' peak allows.

    chip: None if unknown.
    """
    found = trace.strategy
    if chip is None or found is None or trace.step_s is None:
        return trace
    flop = replace(workload, trained=found.trained).train_flop_per_sample
    if flop is None:
        return trace
    flop_per_s = flop * found.global_batch_samples / (trace.step_s * found.num_accelerators)
    share = share_of_peak(flop_per_s, chip, multiplied_in(found.precision))
    if share <= MOST_OF_PEAK:
        return trace
    wrong = (
        f"a workload and batch that match the trace: {format_count(found.global_batch_samples)} samples of "
        f"{workload.title} take {format_milliseconds(share * trace.step_s)} ms at the peak of "
        f"{format_count(found.num_accelerators)} x {chip.title}"
    )
    return replace(trace, missing=(*trace.missing, wrong))


def checks(
    traces: Sequence[UserTrace], load: Load | None, nodes: Cluster, parameters: Parameters | None
) -> tuple[TraceCheck, ...]:
    """Traced runs on this kind of accelerator, with the modelled steps of their strategies.

    load, parameters: None without a model.
    """
    return tuple(
        _check(each, load, nodes, parameters)
        for each in traces
        if each.accelerator in {None, nodes.accelerator.slug}
    )


def unused_traces(traces: Sequence[UserTrace], accelerator: str, title: str) -> Iterator[Note]:
    """Yield a note on each trace of another accelerator, or without a time."""
    for each in traces:
        name = file_names(each.files, 1)
        if each.accelerator not in {None, accelerator}:
            yield Note(f"{name} for {title}: it ran on {each.device}.", "not_used")
        elif each.missing:
            yield Note(f"{name}: it gives no time without {'; '.join(each.missing)}.", "not_used")


def _check(trace: UserTrace, load: Load | None, nodes: Cluster, parameters: Parameters | None) -> TraceCheck:
    if load is None or parameters is None or trace.strategy is None or trace.is_other:
        return TraceCheck(trace=trace)
    size = trace.strategy.num_accelerators
    found = estimate(load, machine(replace(nodes, num_accelerators=size)), grid([trace.strategy]), parameters)
    step_s = float(np.ravel(found.step_s)[0])
    if not (math.isfinite(step_s) and step_s > 0):
        return TraceCheck(trace=trace)
    exposed_s = math.fsum(float(np.ravel(getattr(found.seconds, name))[0]) for name in _EXPOSED)
    return TraceCheck(trace=trace, modelled_step_s=step_s, modelled_exposed_share=exposed_s / step_s)


class UserEvidence(Struct, frozen=True, kw_only=True):
    """The user's measurements. runs, collectives: None if none were given."""

    runs: UserRuns | None = None
    collectives: "TimedCollectives | None" = None
    traces: tuple[UserTrace, ...] = ()


def user_evidence(
    query: TrainingQuery, workload: Workload, accelerators: Sequence[str], catalogue: Catalogue
) -> UserEvidence:
    """The measurements given in a question.

    accelerators: slugs in the question. Raises DataError for unreadable files, EvidenceError if nothing can
    be used, UsageError if the question has several accelerators and a file does not name its own.
    """
    if query.traced_as is not None and not query.traces:
        raise UsageError("--traced-as states how traces ran; give them: --trace FILE")
    timed = _timed_collectives(query.collectives, accelerators, catalogue) if query.collectives else None
    traces = user_traces(query.traces, traced_as(query.traced_as), catalogue) if query.traces else ()
    refuse_unnamed_traces(traces, accelerators)
    checked = tuple(
        possible(each, workload, _chip(each.accelerator or accelerators[0], catalogue)) for each in traces
    )
    runs = None if query.runs is None else _runs_in(query.runs, query, workload, accelerators, catalogue)
    return UserEvidence(runs=with_traces(runs, checked), collectives=timed, traces=checked)


def _timed_collectives(
    paths: Sequence[Path], accelerators: Sequence[str], catalogue: Catalogue
) -> "TimedCollectives":
    for path in paths:
        if not path.exists():
            raise DataError(
                f"--collectives {path}: file not found; expected output of nccl-tests or rccl-tests"
            )
    from equipoise.calibration.user_collectives import (  # noqa: PLC0415 - only where files are given
        given_collectives,
        refuse_unnamed,
    )

    timed = given_collectives(paths, catalogue)
    refuse_unnamed(timed, accelerators)
    return timed


def _runs_in(
    path: Path, query: TrainingQuery, workload: Workload, accelerators: Sequence[str], catalogue: Catalogue
) -> UserRuns:
    from equipoise.decide.user_evidence.folders import (  # noqa: PLC0415 - only where a folder is given
        user_runs,
    )
    from equipoise.decide.user_evidence.usable import Asked  # noqa: PLC0415 - as above

    is_of_pairs = bool({"dpo", "grpo"} & set(query.train))  # a sample is not a single sequence
    asked = Asked(
        workload=workload.slug,
        accelerators=tuple(accelerators),
        sequence_tokens=None if is_of_pairs else workload.sequence_tokens,
        is_to_target=query.is_to_target,
        known=workload,
        catalogue=catalogue,
    )
    runs = user_runs(
        path,
        asked,
        global_batch_samples=query.global_batch_samples,
        is_named_here=query.config is not None,
        precisions=query.precision,
    )
    if not runs.set_ups and runs.trainings is None:
        raise DataError(_no_row(runs))
    refuse_unnamed_runs(runs, accelerators)
    return runs


def _no_row(runs: UserRuns) -> str:
    """Message that no given run can be used, with the reason."""
    why = next((each.words for each in runs.notes if each.kind == "not_used"), "no rows")
    others = runs.other_workloads
    held = f"; it has {listed(others, _MAX_NAMED)}" if len(others) > 1 else ""
    return f"--runs {runs.where}: no run can be used: {why.removesuffix('.')}{held}"


def _chip(name: str, catalogue: Catalogue) -> Accelerator | None:
    """The accelerator of a slug; None if it is not in the catalogue."""
    return catalogue.accelerator(name) if catalogue.accelerator_slug(name) is not None else None
