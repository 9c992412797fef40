"""The reader of MLPerf Training rounds: evaluates and scores entries, and converts them to table rows."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from equipoise.runs import Blob, Reader, ReaderResult, Row, RowRejection, SourceFacts, Tally
from equipoise.runs.readers.mlperf.entries import (
    MAX_JSON_BYTES,
    Log,
    ResultEntry,
    collect,
    file_kind,
    looks_like_log,
)
from equipoise.runs.readers.mlperf.log import LogFacts, TrainingProgress, read_log
from equipoise.runs.readers.mlperf.system import (
    MAX_NAME_CHARACTERS,
    Names,
    SystemFacts,
    read_scaling,
    read_summary,
    read_system,
)
from equipoise.runs.scoring import (
    CORRUPT_LINE,
    SLOW_INIT,
    SUCCESS,
    RunOutcome,
    Score,
    entry_energy_j,
    node_power_w,
    run_energy_j,
    score,
    switch_power_w,
)
from equipoise.spec import mlperf as spellings
from equipoise.spec.catalogue import Catalogue
from equipoise.units import HOUR_S, MINUTE_S, listed, plural

# Officially, Stable Diffusion ends at the first checkpoint that meets both targets, even if training
# continued.
# Source: MLPerf Training rules v3.1. The metrics are measured after training and logged separately in any
# order.
_CHECKPOINT_TARGETS = {"FID": (0.0, 90.0), "CLIP": (0.15, 1.0)}


def _checkpoint(log: LogFacts) -> TrainingProgress | None:
    """Return the first checkpoint that meets all targets; None if there is none or metrics are not logged."""
    results: dict[float, dict[str, float]] = {}
    reached: dict[float, TrainingProgress] = {}
    for metric in log.metrics:
        at = metric.progress.get("samples_count", metric.progress.get("step_num"))
        if at is not None and metric.name in _CHECKPOINT_TARGETS:
            results.setdefault(at, {})[metric.name] = metric.value
            reached[at] = metric.progress
    for at in sorted(results):
        if all(
            name in results[at] and low <= results[at][name] <= high
            for name, (low, high) in _CHECKPOINT_TARGETS.items()
        ):
            return reached[at]
    return None


def stated_progress(log: LogFacts) -> dict[str, float]:
    """Return the log's numbers about the end of training, by its own keys."""
    stated = dict(_checkpoint(log) or log.progress or {})
    epochs = _early_epochs(log)
    if epochs is not None:
        stated["epoch_num"] = epochs
    if log.train_samples is not None:
        stated["train_samples"] = log.train_samples
    return stated


def _early_epochs(log: LogFacts) -> float | None:
    """Return epochs trained from `epoch` numbers (v0.5), which start at 0 or 1 and may lag by one."""
    numbered = log.progress.get("epoch") if log.progress else None
    if numbered is None:
        return None
    last = numbered if log.last_train_epoch is None else max(numbered, log.last_train_epoch)
    return last if log.first_train_epoch == 1 else last + 1


# Maximum time from the first `init_start` to `init_stop`; since v2.0, open submissions may compile for
# longer.
# Source: mlperf-logging, compliance checker, common.yaml of each round.
_INIT_LIMIT_S = 30 * MINUTE_S
_OPEN_INIT_LIMIT_S = 4 * HOUR_S
_FIRST_WITH_OPEN_LIMIT = 2.0


class EntryRun(Struct, frozen=True, kw_only=True):
    """One evaluated log of an entry: its outcome with the official time, samples to target and energy."""

    log: Log
    outcome: RunOutcome
    samples_to_target: float | None
    energy_j: float | None

    @property
    def init_s(self) -> float | None:
        """Seconds from the first `init_start` to `run_start`, outside the official clock."""
        facts = self.log.facts
        if facts.init_start_s is None or facts.run_start_s is None or facts.run_start_s < facts.init_start_s:
            return None
        return facts.run_start_s - facts.init_start_s

    @property
    def samples_per_s(self) -> float | None:
        """Samples to target divided by the official time, which includes evaluation."""
        time_s = self.outcome.time_s
        return None if self.samples_to_target is None or not time_s else self.samples_to_target / time_s


def clock_s(facts: LogFacts, workload: str) -> float | None:
    """Return the official time of a run; v0.6 Minigo logs it as the result of a later evaluation."""
    if workload == "minigo" and facts.dialect == "MLL" and facts.eval_result_s is not None:
        return facts.eval_result_s
    return facts.time_to_train_s


def run_status(facts: LogFacts, time_s: float | None, init_limit_s: float) -> str:
    """Return `success`, or the first reason why a run does not count."""
    if time_s is None:
        return "no_run_start" if facts.run_start_s is None else "no_run_stop"
    init_s = 0.0
    if facts.init_start_s is not None and facts.init_stop_s is not None:
        init_s = facts.init_stop_s - facts.init_start_s
    reasons = (
        ("no_time", time_s <= 0),
        ("no_status", facts.status is None and facts.dialect == "MLLOG"),
        (f"status={facts.status}"[:MAX_NAME_CHARACTERS], facts.status not in {None, SUCCESS}),
        ("target_missed", facts.missed_target),
        (CORRUPT_LINE, facts.num_corrupt > 0),
        (SLOW_INIT, init_s >= init_limit_s),
    )
    return next((reason for reason, applies in reasons if applies), SUCCESS)


def _first(*values: str | None) -> str | None:
    """Return the first text that is not a placeholder of a submission script, truncated if far too long."""
    found = (value[:MAX_NAME_CHARACTERS] for value in values if value and "PLACEHOLDER" not in value)
    return next(found, None)


class JudgedEntry(Struct, frozen=True, kw_only=True):
    """An entry with mapped names, evaluated runs and its score."""

    entry: ResultEntry
    columns: Row
    runs: tuple[EntryRun, ...]
    score: Score

    @property
    def counted(self) -> tuple[EntryRun, ...]:
        """The runs whose mean is the score."""
        return tuple(self.runs[index] for index in self.score.counted)


def judged(entry: ResultEntry, names: Names, rejected: Tally) -> JudgedEntry:
    """Evaluate an entry and return it with its names, runs and score."""
    logged = entry.logs[0].facts.submission if entry.logs else {}
    system = entry.system or SystemFacts()
    if entry.system is None:
        rejected.refuse("no_system_description", entry.uri, "accelerators and nodes unknown")
    elif system.num_accelerators is None:
        detail = "the system's description states no number of accelerators and nodes that can be read"
        rejected.refuse("no_accelerator_count", entry.uri, detail)
    number = entry.round.number
    division = names.slug(
        "division", _first(system.division, logged.get("division")), spellings.division_slug
    )
    raw_workload = entry.benchmark or logged.get("benchmark") or "unknown"
    slug_of = names.catalogue.workload_slug
    workload = slug_of(raw_workload, number) or slug_of(logged.get("benchmark", ""), number)
    if workload is None:
        workload = names.slug("workload", raw_workload, lambda _: None) or raw_workload
    _note_conflicts(entry, {"benchmark": workload, "division": division}, names, rejected)
    limit_s = _OPEN_INIT_LIMIT_S if division == "open" and number >= _FIRST_WITH_OPEN_LIMIT else _INIT_LIMIT_S
    runs = tuple(
        _run(log, workload, number, limit_s, names.catalogue) for log in _metered(entry, system, rejected)
    )
    for log in entry.logs:
        if log.facts.num_corrupt:
            where = f"{entry.uri}/{log.name}:{log.facts.first_corrupt_line}"
            detail = f"{plural(log.facts.num_corrupt, 'marked line')} cannot be read; the rules void the run"
            rejected.refuse("corrupt_line", where, detail)
    accelerator, num_accelerators = names.accelerators(system, entry.system_folder)
    columns = {
        "origin": "mlperf",
        "campaign": entry.round.label,
        "division": division,
        "availability": names.slug(
            "availability", _first(system.availability, logged.get("status")), spellings.availability_slug
        ),
        "submitter": _first(entry.organisation, system.submitter, logged.get("org")),
        "system": _first(entry.system_folder, logged.get("platform"), system.system_name)
        or entry.uri.rpartition("/")[2],
        "workload": workload,
        "accelerator": accelerator,
        "num_accelerators": num_accelerators,
        "num_nodes": system.num_nodes,
        "framework": names.slug("framework", system.framework, spellings.framework_slug),
        "precision": _first(*(log.facts.precision for log in entry.logs)),
        "strategy": _first(*(log.facts.strategy for log in entry.logs)),
        "global_batch_samples": _global_batch(entry, workload, rejected, names.catalogue),
    }
    return JudgedEntry(
        entry=entry,
        columns=columns,
        runs=runs,
        score=score(
            [run.outcome for run in runs],
            names.catalogue.workload_table.rules(workload),
            convergence_scaling=entry.scaling,
            gaps=entry.has_gaps,
        ),
    )


def _note_conflicts(
    entry: ResultEntry, taken: Mapping[str, str | None], names: Names, rejected: Tally
) -> None:
    """Count logs that contradict the entry's folder and system description, which take precedence.

    MLCommons uses the same precedence. taken: benchmark and division of the entry, as slugs if known.
    """

    def slugs(name: str, lookup: Callable[[str], str | None]) -> Counter[str]:
        stated = (_first(log.facts.submission.get(name)) for log in entry.logs)
        return Counter(slug for each in stated if each and (slug := lookup(each)) is not None)

    def benchmark_slug(raw: str) -> str | None:
        return names.catalogue.workload_slug(raw, entry.round.number)

    stated = {
        "benchmark": slugs("benchmark", benchmark_slug),
        "division": slugs("division", spellings.division_slug),
    }
    for name, seen in stated.items():
        others = seen.keys() - {taken[name]}
        if others and taken[name] is not None:
            detail = f"{plural(sum(seen[each] for each in others), 'log')} of {len(entry.logs)} state {name} "
            detail += f"{listed(sorted(others))}; taken as {taken[name]}"
            rejected.refuse(f"conflicting_{name}", entry.uri, detail)
    if seen := stated["benchmark"]:
        folder = entry.benchmark
        if folder and benchmark_slug(folder) is None and taken["benchmark"] in seen:
            detail = f"the folder's name, {folder!r}, is no known benchmark; taken as its logs state, "
            detail += str(taken["benchmark"])
            rejected.refuse("unknown_benchmark_folder", entry.uri, detail)


# Assumed minimum power of an idle accelerator in W; all metered entries of v4.0 to v5.0 have at least 450
# each. Lower readings are in kW, or cover only a part of the node.
_MIN_ACCELERATOR_W = 20.0


def _metered(entry: ResultEntry, system: SystemFacts, rejected: Tally) -> Iterator[Log]:
    """Yield the logs of an entry; power readings are dropped if not all nodes were metered.

    Implausibly low power is counted as a warning but used.
    """
    for log in entry.logs:
        where, metered_w = f"{entry.uri}/{log.name}", [each for each in log.nodes_w if each is not None]
        if system.num_nodes is not None and 0 < len(log.nodes_w) < system.num_nodes:
            detail = f"power of {len(log.nodes_w)} of {system.num_nodes} nodes: no energy is taken from it"
            rejected.refuse("power_of_some_nodes", where, detail)
            yield replace(log, nodes_w=(), switches_w=())
            continue
        if metered_w and system.num_accelerators:
            each_w = sum(metered_w) / system.num_accelerators
            if each_w < _MIN_ACCELERATOR_W:
                detail = (
                    f"{each_w:.3g} W for each accelerator: expected watts of whole nodes; used as they are"
                )
                rejected.refuse("little_power", where, detail)
        yield log


def _run(log: Log, workload: str, round_number: float, init_limit_s: float, catalogue: Catalogue) -> EntryRun:
    time_s = clock_s(log.facts, workload)
    outcome = RunOutcome(time_s=time_s, status=run_status(log.facts, time_s, init_limit_s))
    reached = outcome.status in {SUCCESS, CORRUPT_LINE, SLOW_INIT}
    return EntryRun(
        log=log,
        outcome=outcome,
        samples_to_target=catalogue.workload_table.samples_to_target(
            workload,
            stated_progress(log.facts),
            round_number=round_number,
            global_batch_samples=log.facts.global_batch,
        )
        if reached
        else None,
        energy_j=run_energy_j(log.nodes_w, log.switches_w, time_s),
    )


def _global_batch(entry: ResultEntry, workload: str, rejected: Tally, catalogue: Catalogue) -> int | None:
    """Return the batch of an entry; if logs differ, the most common and then the smallest, with a warning."""
    logged = [batch for log in entry.logs if (batch := log.facts.global_batch) is not None]
    in_samples = catalogue.workload_table.global_batch_samples
    seen = Counter(
        batch for log in entry.logs if (batch := in_samples(workload, log.facts.global_batch)) is not None
    )
    if len(seen) > 1:
        detail = f"global batches {sorted(seen)}; that of most logs is used"
        rejected.refuse("conflicting_batch", entry.uri, detail)
    if logged and not seen:
        detail = (
            f"global_batch_size={min(logged):g} is not a possible number of samples of {workload}; not used"
        )
        rejected.refuse("batch_not_in_samples", entry.uri, detail)
    return min(seen, key=lambda batch: (-seen[batch], batch), default=None)


def run_rows(judged_entry: JudgedEntry, names: Names) -> list[Row]:
    """Return the rows of `runs` of an entry."""
    entry, workload = judged_entry.entry, judged_entry.columns["workload"]
    in_samples = names.catalogue.workload_table.global_batch_samples
    rows = []
    for run in judged_entry.runs:
        facts = run.log.facts
        uri = f"{entry.uri}/{run.log.name}"
        rows.append(
            {
                "run_id": f"{entry.round.label}/{uri}",
                **judged_entry.columns,
                "global_batch_samples": in_samples(workload, facts.global_batch),
                "status": run.outcome.status,
                "time_to_train_s": run.outcome.time_s,
                "samples_to_target": run.samples_to_target,
                "samples_per_s": run.samples_per_s,
                "eval_s": facts.shares.eval_s,
                "eval_outside_s": facts.shares.eval_outside_s,
                "train_block_s": facts.shares.train_block_s,
                "init_s": run.init_s,
                "reported_throughput": facts.reported_throughput,
                "energy_j": run.energy_j,
                "source_uri": uri,
                "source_line": facts.run_stop_line or facts.num_lines,
            }
        )
    return rows


def _mean(runs: Sequence[EntryRun], value: Callable[[EntryRun], float | None]) -> float | None:
    """Return the mean of a value over runs; None unless all runs state it."""
    values = [found for run in runs if (found := value(run)) is not None]
    return math.fsum(values) / len(values) if values and len(values) == len(runs) else None


def score_row(judged_entry: JudgedEntry, entry_id: str) -> Row:
    """Return the row of `scores` of an entry."""
    entry, found, counted = judged_entry.entry, judged_entry.score, judged_entry.counted
    samples = _mean(counted, lambda run: run.samples_to_target)
    metered = any(log.nodes_w for log in entry.logs) and bool(counted)
    energies_j = [run.energy_j for run in counted]
    return {
        "entry_id": entry_id,
        **judged_entry.columns,
        "score_s": found.score_s,
        "reason": found.reason,
        "lenient_s": found.lenient_s,
        "unscaled_s": found.unscaled_s,
        "convergence_scaling": entry.scaling,
        "num_runs": len(entry.logs),
        "num_failed": found.num_failed,
        "num_missing": found.num_missing,
        "min_s": found.min_s,
        "max_s": found.max_s,
        "samples_to_target": samples,
        "samples_per_s": samples / found.unscaled_s if samples is not None and found.unscaled_s else None,
        "eval_s": _mean(counted, lambda run: run.log.facts.shares.eval_s),
        "eval_outside_s": _mean(counted, lambda run: run.log.facts.shares.eval_outside_s),
        "train_block_s": _mean(counted, lambda run: run.log.facts.shares.train_block_s),
        "init_s": _mean(counted, lambda run: run.init_s),
        "energy_j": entry_energy_j(energies_j, entry.scaling or 1.0) if metered else None,
        "source_uri": entry.uri,
        "source_line": entry.logs[0].facts.run_stop_line if entry.logs else None,
    }


# The facts of a file, by its kind; a number is a scaling factor, or the power of a meter.
Fact: TypeAlias = LogFacts | SystemFacts | dict[str, SystemFacts] | float | RowRejection | None


def wanted(path: str, size: int) -> bool:
    """Return whether a file may hold results, a system description, a scaling factor or power readings."""
    return file_kind(path) is not None and (size <= MAX_JSON_BYTES or not path.lower().endswith(".json"))


def passed_over(path: str) -> RowRejection | None:
    """Return why a text file among the results is not read as a log, or None."""
    if file_kind(path) is not None or not looks_like_log(path):
        return None
    return RowRejection(
        kind="not_a_result", where=path, detail="not named result_*.txt: no log of a scored run"
    )


def parse(blob: Blob) -> Fact:
    """Return the facts of one file; a file of no known kind, which the user named, is read as a log."""
    match file_kind(blob.path):
        case "system" | "entry":
            return read_system(blob.data) or RowRejection(
                kind="unreadable_system",
                where=blob.path,
                detail="neither JSON nor a text of key: value lines",
            )
        case "summary":
            found = read_summary(blob.data)
            rejection = RowRejection(
                kind="unreadable_summary", where=blob.path, detail="not a JSON list of results"
            )
            return rejection if found is None else found
        case "scaling":
            return read_scaling(blob.data)
        case "node_power":
            return node_power_w(blob.data)
        case "switch_power":
            return switch_power_w(blob.data)
        case _:
            return read_log(blob.data)


def _entry_ids(entries: Sequence[JudgedEntry]) -> list[str]:
    """Return a unique name per entry: round, organisation, system, workload, and the folder if needed."""
    names: list[str] = []
    seen: set[str] = set()
    for each in entries:
        columns = each.columns
        parts = [columns["campaign"], columns["submitter"], columns["system"], columns["workload"]]
        name = "/".join(str(part) for part in parts if part is not None)
        if name in seen:
            name = f"{name}@{each.entry.uri}"
        while name in seen:
            name += "+"
        seen.add(name)
        names.append(name)
    return names


def _note_identical_logs(entries: Sequence[ResultEntry], rejected: Tally) -> None:
    """Warn of identical logs; both are kept, as in the official scoring."""
    first: dict[tuple[str, bytes], str] = {}
    for entry in entries:
        for log in entry.logs:
            if log.facts.num_events == 0:
                continue
            uri = f"{entry.uri}/{log.name}"
            other = first.setdefault((entry.round.label, log.facts.fingerprint), uri)
            if other != uri:
                rejected.refuse("identical_log", uri, f"used; the same log as {other}")


def assemble(sources: Sequence[SourceFacts], catalogue: Catalogue) -> ReaderResult:
    """Return the rows of both tables from the facts of all sources, sorted by entry."""
    rejected = Tally()
    names = Names(catalogue=catalogue)
    entries, num_runs_rejected = collect(sources, rejected)
    _note_identical_logs(entries, rejected)
    found = [judged(entry, names, rejected) for entry in entries]
    runs: list[Row] = []
    scores: list[Row] = []
    for each, entry_id in zip(found, _entry_ids(found), strict=True):
        runs += run_rows(each, names)
        scores.append(score_row(each, entry_id))
    return ReaderResult(
        runs=runs,
        scores=scores,
        num_runs_rejected=num_runs_rejected,
        rejected=rejected,
        unknown_names=names.rows(),
    )


MLPERF = Reader(name="mlperf", wanted=wanted, passed_over=passed_over, parse=parse, assemble=assemble)
